// The random choices of MixUp and CutMix.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "saturate/data/effects.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

constexpr int kDraws = 100000;

AugmentOptions mixing(double mixup, double cutmix) {
  AugmentOptions options;
  options.size = 64;
  options.mixup = mixup;
  options.cutmix = cutmix;
  return options;
}

Mix drawn(const AugmentOptions& options, int i, size_t count = 10) {
  return draw_mix(options, {4, 0, uint64_t(i)}, count);
}

TEST(DrawMix, IsDistributedLikeTorchvisions) {
  std::map<std::string, std::vector<double>> values;
  for (int i = 0; i < kDraws; ++i) {
    for (const auto& [name, alpha] :
         {std::pair{"mixup 0.2", 0.2}, {"mixup 1.0", 1.0}, {"mixup 3.0", 3.0}})
      values[name].push_back(drawn(mixing(alpha, 0), i).lambda);
    const Mix cut = drawn(mixing(0, 1), i);
    values["cutmix_left"].push_back(cut.box.x);
    values["cutmix_top"].push_back(cut.box.y);
    values["cutmix_right"].push_back(cut.box.x + cut.box.width);
    values["cutmix_bottom"].push_back(cut.box.y + cut.box.height);
    values["cutmix_lambda"].push_back(cut.lambda);
  }
  size_t cases = 0;
  for (auto& line : testing::golden_lines("effect_draws.txt")) {
    std::string quantity, alpha;
    line >> quantity;
    if (quantity == "mixup") {
      line >> alpha;
      quantity += " " + alpha;
    }
    const auto found = values.find(quantity);
    if (found == values.end()) continue;
    EXPECT_LT(testing::share_distance(found->second, line), testing::share_limit(kDraws))
        << quantity;
    ++cases;
  }
  EXPECT_EQ(cases, 8u);
}

TEST(DrawMix, PairsEverySampleWithAnyOther) {
  std::map<size_t, int> offsets;
  for (int i = 0; i < kDraws; ++i) ++offsets[drawn(mixing(1, 0), i, 6).offset];
  ASSERT_EQ(offsets.size(), 5u);
  EXPECT_EQ(offsets.begin()->first, 1u);
  double chi_square = 0;
  for (const auto& [offset, count] : offsets)
    chi_square += (count - kDraws / 5) * double(count - kDraws / 5) / (kDraws / 5.0);
  EXPECT_LT(chi_square, 18.5);  // 4 degrees of freedom, p = 0.001
}

TEST(DrawMix, ChoosesEachWithEqualProbabilityIfBothAreOn) {
  int cut = 0;
  for (int i = 0; i < kDraws; ++i) cut += drawn(mixing(1, 1), i).kind == MixKind::kCutMix;
  EXPECT_NEAR(double(cut) / kDraws, 0.5, 0.006);
}

TEST(DrawMix, DoesNotChangeABatchOfOne) {
  EXPECT_EQ(drawn(mixing(1, 1), 0, 1).kind, MixKind::kNone);
  EXPECT_EQ(drawn(mixing(0, 0), 0).kind, MixKind::kNone);
}

// A small alpha underflows a Gamma variate, which must not become a NaN.
TEST(DrawMix, WorksWithTheSmallestAlpha) {
  int ends = 0;
  for (int i = 0; i < 1000; ++i) {
    const double lambda = drawn(mixing(0.001, 0), i).lambda;
    ASSERT_TRUE(lambda >= 0 && lambda <= 1);
    ends += lambda < 0.01 || lambda > 0.99;
  }
  EXPECT_GT(ends, 950);
}

// tests/oracles/formula.py's images of mix.bin, [5, 3, 6, 6].
std::vector<float> golden_images() {
  const std::string name = "images";
  const auto seed =
      uint32_t(::crc32(0, reinterpret_cast<const Bytef*>(name.data()), uInt(name.size())));
  std::vector<float> values(5 * 3 * 6 * 6);
  for (uint32_t i = 0; i < values.size(); ++i) {
    uint32_t h = seed + i * 2654435761u;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    values[i] = float((h ^ (h >> 16)) >> 8) / 16777216.0f;
  }
  return values;
}

// From [5, 3, 36] or its transpose, by image.
std::vector<float> transposed(const std::vector<float>& in, bool to_planes) {
  std::vector<float> out(in.size());
  for (size_t image = 0; image < 5; ++image)
    for (size_t c = 0; c < 3; ++c)
      for (size_t pixel = 0; pixel < 36; ++pixel) {
        const size_t planar = (image * 3 + c) * 36 + pixel, mixed = (image * 36 + pixel) * 3 + c;
        out[to_planes ? planar : mixed] = in[to_planes ? mixed : planar];
      }
  return out;
}

TEST(MixImages, EqualsTorchvision) {
  const auto bytes = read_file(Env::posix(), testing::golden("mix.bin"));
  size_t cases = 0;
  for (auto& line : testing::golden_lines("mix.txt")) {
    Mix mix;
    std::string kind;
    line >> kind >> mix.lambda >> mix.offset >> mix.box.x >> mix.box.y >> mix.box.width >>
        mix.box.height;
    mix.kind = kind == "cutmix" ? MixKind::kCutMix : MixKind::kMixUp;
    std::vector<float> expected(5 * 3 * 6 * 6);
    std::memcpy(expected.data(), bytes.data() + cases++ * expected.size() * 4, expected.size() * 4);
    for (const bool planar : {true, false}) {
      auto pixels = planar ? golden_images() : transposed(golden_images(), false);
      mix_images(mix, PixelType::kFloat32, planar, 5, 6,
                 reinterpret_cast<std::byte*>(pixels.data()));
      if (!planar) pixels = transposed(pixels, true);
      for (size_t i = 0; i < pixels.size(); ++i) ASSERT_NEAR(pixels[i], expected[i], 1e-6) << i;
    }
  }
  EXPECT_EQ(cases, 4u);
}

// Small images of one value each, so that every offset's cycles show.
TEST(MixImages, MixesHalfPrecisionAtEveryOffset) {
  constexpr size_t kCount = 6, kValues = 12;
  for (size_t offset = 1; offset < kCount; ++offset)
    for (const PixelType type : {PixelType::kBfloat16, PixelType::kFloat16}) {
      const auto bits = [&](float value) {
        return type == PixelType::kBfloat16 ? to_bfloat16(value) : to_float16(value);
      };
      std::vector<uint16_t> pixels;
      for (size_t i = 0; i < kCount; ++i)
        pixels.insert(pixels.end(), kValues, bits(8.0f * float(i)));
      mix_images({MixKind::kMixUp, 0.25, offset, {}}, type, true, kCount, 2,
                 reinterpret_cast<std::byte*>(pixels.data()));
      for (size_t i = 0; i < kCount; ++i) {
        const size_t from = (i + kCount - offset) % kCount;
        for (size_t value = 0; value < kValues; ++value)
          EXPECT_EQ(pixels[i * kValues + value], bits(2.0f * float(i) + 6.0f * float(from)));
      }
    }
}

}  // namespace
}  // namespace saturate
