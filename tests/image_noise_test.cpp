// Gaussian noise: its distribution, and the keys of its random numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "image/effect_passes.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

constexpr uint32_t kNumbers = 1 << 20;

std::vector<double> numbers(uint32_t seed) {
  std::vector<double> drawn(kNumbers);
  for (uint32_t place = 0; place < kNumbers; ++place) drawn[place] = normal_noise(seed, place);
  return drawn;
}

// Pearson's correlation of numbers with mean 0 and variance 1.
double correlation(const std::vector<double>& a, const std::vector<double>& b, size_t lag) {
  double sum = 0;
  for (size_t i = lag; i < a.size(); ++i) sum += a[i] * b[i - lag];
  return sum / double(a.size());
}

// Kolmogorov-Smirnov distance: 0.002 for the formula, and 1.95 / sqrt(n) for p = 0.001.
TEST(Noise, IsNormal) {
  for (const uint32_t seed : {0u, 1u, 0xfffffffeu}) {
    std::vector<double> drawn = numbers(seed);
    std::sort(drawn.begin(), drawn.end());
    double most = 0, sum = 0, squares = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const double normal = 0.5 * std::erfc(-drawn[i] / std::sqrt(2.0));
      most = std::max(most, std::abs(normal - (double(i) + 0.5) / kNumbers));
      sum += drawn[i];
      squares += drawn[i] * drawn[i];
    }
    EXPECT_LT(most, 0.002 + 1.95 / std::sqrt(kNumbers)) << seed;
    EXPECT_NEAR(sum / kNumbers, 0, 4 / std::sqrt(kNumbers)) << seed;
    EXPECT_NEAR(squares / kNumbers, 1, 6 / std::sqrt(kNumbers)) << seed;
  }
}

TEST(Noise, IsIndependentBetweenPixelsAndSeeds) {
  const std::vector<double> one = numbers(7), next = numbers(8);
  for (const size_t lag : {1, 2, 3, 4, 8, 1 << 14, 1 << 16})  // channels, columns, rows
    EXPECT_NEAR(correlation(one, one, lag), 0, 4.5 / std::sqrt(kNumbers)) << lag;
  for (const size_t lag : {0, 1})
    EXPECT_NEAR(correlation(one, next, lag), 0, 4.5 / std::sqrt(kNumbers));
}

TEST(Noise, HasTheRecipesDeviationAndIsClamped) {
  AugmentOptions options =
      parse_recipe("[data]\nsource = \"synth:\"\n[augment]\ngaussian_noise = 0.1\n", "test")
          .augment;
  options.size = 64;
  EffectScratch scratch;
  double squares = 0;
  for (uint64_t index = 0; index < 16; ++index) {
    const EffectList list = draw_effects(options, {3, 0, index});
    ASSERT_EQ(list.count, 1);
    std::vector<uint8_t> grey(64 * 64 * 3, 128), black(64 * 64 * 3, 0);
    apply_effects(list, 64, scratch, grey.data());
    apply_effects(list, 64, scratch, black.data());
    for (const uint8_t level : grey) squares += (level - 128.0) * (level - 128.0);
    const auto unchanged = std::count(black.begin(), black.end(), 0);
    EXPECT_NEAR(double(unchanged) / double(black.size()), 0.508, 0.03) << "clamped below 0";
  }
  EXPECT_NEAR(std::sqrt(squares / (16 * 64 * 64 * 3)), 25.5, 0.2);
}

TEST(Noise, DependsOnTheSampleAndTheEpoch) {
  AugmentOptions options;
  options.size = 8;
  options.gaussian_noise = 0.2;
  const auto noise = [&](uint64_t seed, uint32_t epoch, uint64_t index) {
    EffectScratch scratch;
    std::vector<uint8_t> pixels(8 * 8 * 3, 128);
    apply_effects(draw_effects(options, {seed, epoch, index}), 8, scratch, pixels.data());
    return pixels;
  };
  const auto first = noise(1, 2, 3);
  EXPECT_EQ(noise(1, 2, 3), first);
  EXPECT_NE(noise(1, 2, 4), first);
  EXPECT_NE(noise(1, 3, 3), first);
  EXPECT_NE(noise(2, 2, 3), first);
}

}  // namespace
}  // namespace saturate
