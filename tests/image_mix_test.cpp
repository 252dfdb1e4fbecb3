// The random choices of MixUp and CutMix.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace saturate
