#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <tuple>
#include <type_traits>

#include "image/fast_kernels.h"
#include "saturate/data/augment.h"
#include "saturate/data/random.h"
#include "tests/simd_testing.h"

namespace saturate {

void PrintTo(const FastKernels& kernels, std::ostream* out) {
  *out << kernels.name;
}

namespace {

std::vector<uint8_t> noise(size_t size, uint32_t key) {
  RandomStream random(3, 0, key, RandomUse::kSynthetic);
  std::vector<uint8_t> values(size + kFastSlack);
  for (auto& value : values) value = uint8_t(random.below(256));
  return values;
}

FastAxis make_axis(const FastAxisSpec& spec) {
  FastAxis axis;
  EXPECT_TRUE(FastAxisMaker().make(spec, axis));
  return axis;
}

// Reductions and enlargements that need one, two, four and eight windows.
const FastAxisSpec kSpecs[] = {
    {0, 224, 224, 1, 1, 224, false, false}, {3, 50, 224, 1, 1, 60, false, true},
    {7, 300, 224, 1, 1, 400, false, false}, {0, 480, 224, 1, 1, 480, false, true},
    {0, 500, 100, 1, 1, 500, false, false}, {10, 480, 33, 1, 1, 500, false, true},
    {0, 800, 31, 1, 1, 800, false, false},  {5, 300, 224, 1, 2, 200, true, true},
    {9, 901, 224, 1, 4, 250, false, false}, {4, 1, 17, 1, 1, 9, false, false},
    {2, 1, 5, 1, 2, 4, true, false},        {9, 901, 224, 1, 4, 250, false, true, true},
    {2, 1, 5, 1, 3, 4, false, false, true},
};

class EveryKernel : public ::testing::TestWithParam<FastKernels> {};

TEST_P(EveryKernel, BlendsRowsLikePlain) {
  for (const int taps : {1, 2, 3, 4, 7, 16, kFastMaxTaps}) {
    std::vector<std::vector<uint8_t>> rows;
    std::vector<const uint8_t*> pointers;
    std::vector<uint16_t> weight;
    for (int k = 0; k < taps; ++k) {
      rows.push_back(noise(300, uint32_t(k)));
      weight.push_back(taps == 1 ? 65535 : uint16_t(65536 / taps - k % 3));
    }
    for (const auto& row : rows) pointers.push_back(row.data());
    for (const int n : {1, 15, 16, 31, 32, 33, 64, 299}) {
      std::vector<uint8_t> ours(size_t(n) + kFastSlack), plain(ours.size());
      GetParam().blend_rows(pointers.data(), weight.data(), taps, n, ours.data());
      plain_fast_kernels().blend_rows(pointers.data(), weight.data(), taps, n, plain.data());
      ours.resize(size_t(n));
      plain.resize(size_t(n));
      EXPECT_EQ(ours, plain) << taps << " taps, " << n;
    }
  }
}

TEST_P(EveryKernel, GathersLikePlain) {
  std::vector<bool> seen(9);
  for (const FastAxisSpec& spec : kSpecs) {
    const FastAxis axis = make_axis(spec);
    FastGather gather;
    make_fast_gather(axis, axis.low, gather);
    seen[size_t(gather.windows)] = true;
    const auto row = noise(size_t(axis.high - axis.low), 99);
    std::vector<uint8_t> ours(size_t(spec.out) + kFastSlack), plain(ours.size());
    GetParam().gather_row(gather, row.data(), ours.data());
    plain_fast_kernels().gather_row(gather, row.data(), plain.data());
    ours.resize(size_t(spec.out));
    plain.resize(size_t(spec.out));
    EXPECT_EQ(ours, plain) << spec.length << " to " << spec.out;
  }
  EXPECT_TRUE(seen[1] && seen[2] && seen[4] && seen[8]);
}

TEST_P(EveryKernel, ConvertsColoursLikePlain) {
  constexpr int kPixels = 256 * 256;
  std::vector<uint8_t> y(kPixels + kFastSlack), cb(y.size()), cr(y.size());
  std::vector<uint8_t> ours(y.size() * 3), plain(ours.size());
  for (const int luma : {0, 1, 77, 128, 200, 255}) {
    for (size_t i = 0; i < kPixels; ++i) {
      y[i] = uint8_t(luma + int(i % 5));
      cb[i] = uint8_t(i / 256);
      cr[i] = uint8_t(i % 256);
    }
    for (const int n : {kPixels, 37}) {
      GetParam().ycc_to_rgb(y.data(), cb.data(), cr.data(), n, ours.data());
      plain_fast_kernels().ycc_to_rgb(y.data(), cb.data(), cr.data(), n, plain.data());
      EXPECT_TRUE(std::equal(ours.begin(), ours.begin() + n * 3, plain.begin())) << luma;
    }
  }
}

TEST_P(EveryKernel, NormalizesLikePlain) {
  const Normalize normalize = make_normalize(AugmentOptions());
  const auto in = noise(1000, 5);
  for (const size_t n : {3u, 21u, 24u, 48u, 51u, 999u}) {
    std::vector<float> ours(n), plain(n);
    GetParam().normalize(normalize, in.data(), n, ours.data());
    plain_fast_kernels().normalize(normalize, in.data(), n, plain.data());
    std::vector<uint16_t> our_halves(n), plain_halves(n);
    GetParam().normalize_bfloat16(normalize, in.data(), n, our_halves.data());
    plain_fast_kernels().normalize_bfloat16(normalize, in.data(), n, plain_halves.data());
    EXPECT_EQ(our_halves, plain_halves) << n;
    EXPECT_EQ(ours, plain) << n;
    const size_t pixels = n / 3;
    GetParam().normalize_planes(normalize, in.data(), pixels, ours.data());
    GetParam().normalize_planes_bfloat16(normalize, in.data(), pixels, our_halves.data());
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(ours[i % 3 * pixels + i / 3], plain[i]) << n;
      ASSERT_EQ(our_halves[i % 3 * pixels + i / 3], plain_halves[i]) << n;
    }
    plain_fast_kernels().normalize_planes(normalize, in.data(), pixels, plain.data());
    plain_fast_kernels().normalize_planes_bfloat16(normalize, in.data(), pixels,
                                                   plain_halves.data());
    EXPECT_EQ(ours, plain) << n;
    EXPECT_EQ(our_halves, plain_halves) << n;
  }
}

// Large aligned images are written with non-temporal stores.
TEST_P(EveryKernel, NormalizesLargeImagesLikePlain) {
  const Normalize normalize = make_normalize(AugmentOptions());
  for (const size_t pixels : {128u * 128u, 128u * 128u + 5u}) {
    const auto in = noise(3 * pixels, 7);
    std::vector<float> plain(3 * pixels);
    std::vector<uint16_t> plain_halves(3 * pixels);
    plain_fast_kernels().normalize_planes(normalize, in.data(), pixels, plain.data());
    plain_fast_kernels().normalize_planes_bfloat16(normalize, in.data(), pixels,
                                                   plain_halves.data());
    std::vector<float> interleaved(3 * pixels);
    std::vector<uint16_t> interleaved_halves(3 * pixels);
    plain_fast_kernels().normalize(normalize, in.data(), 3 * pixels, interleaved.data());
    plain_fast_kernels().normalize_bfloat16(normalize, in.data(), 3 * pixels,
                                            interleaved_halves.data());
    for (const size_t offset : {0u, 4u}) {
      const auto check = [&](const auto& expected, auto kernel) {
        using Value = std::decay_t<decltype(expected[0])>;
        std::vector<Value> memory(expected.size() + 64);
        void* begin = memory.data();
        size_t room = memory.size() * sizeof(Value);
        std::align(64, sizeof(Value), begin, room);
        Value* const out = static_cast<Value*>(begin) + offset;
        kernel(normalize, in.data(), pixels, out);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out));
      };
      check(plain, GetParam().normalize_planes);
      check(plain_halves, GetParam().normalize_planes_bfloat16);
      const auto whole = [&](auto kernel) {
        return [=](const Normalize& by, const uint8_t* from, size_t count, auto* to) {
          kernel(by, from, 3 * count, to);
        };
      };
      check(interleaved, whole(GetParam().normalize));
      check(interleaved_halves, whole(GetParam().normalize_bfloat16));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryKernel,
                         ::testing::ValuesIn(testing::without_plain(all_fast_kernels())),
                         [](const auto& target) { return std::string(target.param.name); });

// The tests above run each of these; none is the plain version under another name.
TEST(FastKernelTargets, AllOfThisCpuExistAndTheBestIsUsed) {
  testing::expect_every_target(all_fast_kernels(), fast_kernels());
  const FastKernels& plain = plain_fast_kernels();
  for (const FastKernels& fast : testing::without_plain(all_fast_kernels())) {
    EXPECT_NE(fast.blend_rows, plain.blend_rows) << fast.name;
    EXPECT_NE(fast.gather_row, plain.gather_row) << fast.name;
    EXPECT_NE(fast.ycc_to_rgb, plain.ycc_to_rgb) << fast.name;
    EXPECT_NE(fast.normalize, plain.normalize) << fast.name;
    EXPECT_NE(fast.normalize_bfloat16, plain.normalize_bfloat16) << fast.name;
    EXPECT_NE(fast.normalize_planes, plain.normalize_planes) << fast.name;
    EXPECT_NE(fast.normalize_planes_bfloat16, plain.normalize_planes_bfloat16) << fast.name;
  }
}

// The plain kernel is correct if it equals the sum in double precision.
TEST(FastAxis, GatheringIsTheTriangleFilter) {
  for (const FastAxisSpec& spec : kSpecs) {
    if (spec.doubled || spec.num != spec.den) continue;
    const FastAxis axis = make_axis(spec);
    FastGather gather;
    make_fast_gather(axis, 0, gather);
    const auto row = noise(size_t(spec.samples), 7);
    std::vector<uint8_t> out(size_t(spec.out) + kFastSlack);
    plain_fast_kernels().gather_row(gather, row.data(), out.data());
    const double scale = double(spec.length) / spec.out, support = std::max(scale, 1.0);
    for (int i = 0; i < spec.out; ++i) {
      const double centre = spec.begin + (i + 0.5) * scale;
      double sum = 0, total = 0;
      for (int j = spec.begin; j < spec.begin + spec.length; ++j) {
        const double weight = std::max(0.0, 1 - std::abs(j + 0.5 - centre) / support);
        sum += weight * row[size_t(j)];
        total += weight;
      }
      EXPECT_NEAR(out[size_t(spec.mirrored ? spec.out - 1 - i : i)], sum / total, 0.52)
          << spec.length << " to " << spec.out << " at " << i;
    }
  }
}

// The chroma of 4:2:0: doubling, then the filter over pixels.
TEST(FastAxis, ADoubledPlaneIsDoubledBeforeFiltering) {
  const FastAxisSpec spec{5, 300, 224, 1, 2, 200, true, false};
  const FastAxis axis = make_axis(spec), pixels = make_axis({5, 300, 224, 1, 1, 400, false, false});
  const auto row = noise(200, 8);
  const auto at = [&](int c) { return double(row[size_t(std::clamp(c, 0, 199))]); };
  for (size_t i = 0; i < 224; ++i) {
    double ours = 0, wanted = 0;
    for (int k = 0; k < axis.taps; ++k)
      ours += axis.weight[i * size_t(axis.taps) + size_t(k)] * at(axis.first[i] + k);
    for (int k = 0; k < pixels.taps; ++k) {
      const int x = pixels.first[i] + k, c = x / 2;
      wanted += pixels.weight[i * size_t(pixels.taps) + size_t(k)] *
                (0.75 * at(c) + 0.25 * at(x % 2 == 0 ? c - 1 : c + 1));
    }
    EXPECT_NEAR(ours / 65536, wanted / 65536, 0.02) << i;
  }
}

// The chroma of 4:1:1.
TEST(FastAxis, ARepeatedPlaneIsRepeatedBeforeFiltering) {
  const FastAxis axis = make_axis({5, 300, 224, 1, 4, 100, false, false, true}),
                 pixels = make_axis({5, 300, 224, 1, 1, 400, false, false});
  EXPECT_LT(axis.taps, pixels.taps);
  const auto row = noise(100, 8);
  for (size_t i = 0; i < 224; ++i) {
    double ours = 0, wanted = 0;
    for (int k = 0; k < axis.taps; ++k)
      ours +=
          axis.weight[i * size_t(axis.taps) + size_t(k)] * double(row[size_t(axis.first[i] + k)]);
    for (int k = 0; k < pixels.taps; ++k)
      wanted += pixels.weight[i * size_t(pixels.taps) + size_t(k)] *
                double(row[size_t((pixels.first[i] + k) / 4)]);
    EXPECT_NEAR(ours / 65536, wanted / 65536, 0.02) << i;
  }
}

TEST(FastAxis, AUniformColourStaysTheSame) {
  for (const FastAxisSpec& spec : kSpecs) {
    const FastAxis axis = make_axis(spec);
    FastGather gather;
    make_fast_gather(axis, axis.low, gather);
    for (const int value : {0, 1, 127, 254, 255}) {
      const std::vector<uint8_t> row(size_t(axis.high - axis.low) + kFastSlack, uint8_t(value));
      std::vector<uint8_t> out(size_t(spec.out) + kFastSlack);
      plain_fast_kernels().gather_row(gather, row.data(), out.data());
      for (int i = 0; i < spec.out; ++i) ASSERT_EQ(out[size_t(i)], value) << spec.length;
      const std::vector<const uint8_t*> rows(size_t(axis.taps), row.data());
      plain_fast_kernels().blend_rows(rows.data(), axis.weight.data(), axis.taps, 1, out.data());
      ASSERT_EQ(out[0], value) << spec.length;
    }
  }
}

TEST(FastAxis, ATooStrongReductionIsRefused) {
  FastAxis axis;
  EXPECT_FALSE(FastAxisMaker().make({0, 4000, 16, 1, 1, 4000, false, false}, axis));
}

// A maker keeps the last filters: axes do not depend on those that it has made before.
TEST(FastAxis, DoesNotDependOnEarlierAxes) {
  RandomStream random(5, 0, 0, RandomUse::kSynthetic);
  FastAxisMaker used;
  for (int round = 0; round < 3000; ++round) {
    const int pixels = 16 + int(random.below(600)),
              length = 1 + int(random.below(uint64_t(pixels)));
    const int begin = int(random.below(uint64_t(pixels - length + 1)));
    const int out = 1 + int(random.below(120));
    for (const auto& [num, den, doubled] :
         {std::tuple{8, 8, false}, {8, 16, true}, {4, 8, false}}) {
      const bool mirrored = random.below(2) == 1;
      const FastAxisSpec spec{begin,   length,  out, num, den, (pixels * num + den - 1) / den,
                              doubled, mirrored};
      FastAxis found, expected;
      ASSERT_EQ(used.make(spec, found), FastAxisMaker().make(spec, expected));
      ASSERT_EQ(found.first, expected.first);
      ASSERT_EQ(found.weight, expected.weight);
      FastAxisSpec turned = spec;
      turned.mirrored = !mirrored;
      if (!used.make(turned, found)) continue;
      for (size_t i = 0; i < size_t(out); ++i) {
        ASSERT_EQ(found.first[i], expected.first[size_t(out) - 1 - i]);
        for (size_t k = 0; k < size_t(found.taps); ++k)
          ASSERT_EQ(found.weight[i * size_t(found.taps) + k],
                    expected.weight[(size_t(out) - 1 - i) * size_t(found.taps) + k]);
      }
    }
  }
}

}  // namespace
}  // namespace saturate
