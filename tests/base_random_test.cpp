#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "saturate/data/random.h"

namespace saturate {
namespace {

using Block = std::array<uint32_t, 4>;

// "philox4x32 10" of kat_vectors in Random123 1.14 (D. E. Shaw Research).
TEST(Philox, AgreesWithRandom123KnownAnswers) {
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, IsTheBlocksOfItsKeyInOrder) {
  RandomStream random(0x123456789abcdef0, 5, 77, RandomUse::kAugment);
  const std::array<uint32_t, 2> key{0x9abcdef0, 0x12345678};
  for (uint32_t draw = 0; draw < 3; ++draw)
    for (uint32_t word : philox4x32({draw, 77, 1u << 24, 5}, key))
      EXPECT_EQ(random.next_u32(), word);
}

TEST(RandomStream, KeysGiveDifferentStreams) {
  std::set<uint64_t> first;
  for (uint64_t seed : {0, 1})
    for (uint32_t epoch : {0, 1})
      for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
        for (RandomUse use :
             {RandomUse::kShuffle, RandomUse::kAugment, RandomUse::kSynthetic, RandomUse::kInit})
          first.insert(RandomStream(seed, epoch, index, use).next_u64());
  EXPECT_EQ(first.size(), 48u);
}

// Pearson's statistic against a uniform distribution.
double chi_square(const std::vector<int>& counts, int draws) {
  const double expected = double(draws) / double(counts.size());
  double sum = 0;
  for (int count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

TEST(RandomStream, BelowIsUniform) {
  RandomStream random(1, 2, 3, RandomUse::kShuffle);
  std::vector<int> counts(13);
  constexpr int kDraws = 130'000;
  for (int i = 0; i < kDraws; ++i) ++counts[random.below(counts.size())];
  EXPECT_LT(chi_square(counts, kDraws), 32.9);  // 12 degrees of freedom, p = 0.001
}

// A bound of 3/4 of the range: plain multiplication or modulo would favour a third of the values.
TEST(RandomStream, BelowHasNoBiasForLargeBounds) {
  RandomStream random(1, 2, 4, RandomUse::kShuffle);
  const uint64_t bound = 3 * (uint64_t{1} << 62);
  std::vector<int> counts(3);
  constexpr int kDraws = 60'000;
  for (int i = 0; i < kDraws; ++i) ++counts[random.below(bound) % 3];
  EXPECT_LT(chi_square(counts, kDraws), 13.8);  // 2 degrees of freedom, p = 0.001
}

TEST(RandomStream, FloatsLieInTheUnitInterval) {
  RandomStream random(9, 0, 0, RandomUse::kInit);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const float f = random.next_float();
    const double d = random.next_double();
    ASSERT_TRUE(f >= 0 && f < 1 && d >= 0 && d < 1);
    sum += d + double(f);
  }
  EXPECT_NEAR(sum / 200'000, 0.5, 0.003);
}

TEST(RandomStream, NormalHasItsMoments) {
  RandomStream random(9, 0, 1, RandomUse::kInit);
  constexpr int kDraws = 200'000;
  double sum = 0, square = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.01);
  EXPECT_NEAR(square / kDraws, 1, 0.015);
  EXPECT_NEAR(fourth / kDraws, 3, 0.12);
}

}  // namespace
}  // namespace saturate
