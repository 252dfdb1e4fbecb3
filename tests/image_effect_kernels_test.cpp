// Every version of the effects' inner loops is bit-equal to the plain one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "image/effect_kernels.h"
#include "image/effect_pixel.h"
#include "saturate/data/random.h"
#include "tests/simd_testing.h"

namespace saturate {
namespace {

std::vector<uint8_t> random_pixels(int size, uint64_t seed) {
  RandomStream random(seed, 0, 0, RandomUse::kSynthetic);
  std::vector<uint8_t> pixels(size_t(size) * size_t(size) * 3);
  // A third of the pixels are grey and some are extreme: hue has cases for each.
  for (size_t i = 0; i < pixels.size(); ++i) {
    const uint64_t kind = random.below(6);
    pixels[i] = kind == 0            ? 255
                : kind == 1          ? 0
                : kind == 2 && i > 0 ? pixels[i - 1]
                                     : static_cast<uint8_t>(random.below(256));
  }
  return pixels;
}

class EveryEffectKernel : public ::testing::TestWithParam<EffectKernels> {
 protected:
  const EffectKernels& plain = plain_effect_kernels();
  const EffectKernels fast = GetParam();
};

TEST_P(EveryEffectKernel, RecolourIsBitEqual) {
  const Effect effects[] = {{EffectKind::kSaturation, {0.3f}}, {EffectKind::kSaturation, {1.7f}},
                            {EffectKind::kHue, {-0.5f}},       {EffectKind::kHue, {0.21f}},
                            {EffectKind::kHue, {0}},           {EffectKind::kGrey, {}}};
  for (const Effect& effect : effects)
    for (const int size : {1, 3, 7, 32, 61}) {
      std::vector<uint8_t> expected = random_pixels(size, 1), found = expected;
      plain.recolour(effect, expected.data(), expected.size() / 3);
      fast.recolour(effect, found.data(), found.size() / 3);
      EXPECT_EQ(found, expected) << "kind " << int(effect.kind) << ", size " << size;
    }
}

TEST_P(EveryEffectKernel, MoveIsBitEqual) {
  const AffineSpec specs[] = {{},
                              {.angle = 33, .translate_x = 2.5, .scale = 0.7},
                              {.angle = -90},
                              {.translate_y = -3, .scale = 1.9, .shear_x = 20},
                              {.translate_x = 500}};
  for (const AffineSpec& spec : specs)
    for (const int size : {1, 2, 9, 32, 67}) {
      Effect effect{EffectKind::kAffine, {}};
      set_affine(spec, effect);
      const std::vector<uint8_t> in = random_pixels(size, 2);
      std::vector<uint8_t> expected(size_t(size) * 3), found(expected);
      for (int y = 0; y < size; ++y) {
        plain.affine_row(effect.value, in.data(), size, y, expected.data());
        fast.affine_row(effect.value, in.data(), size, y, found.data());
        EXPECT_EQ(found, expected) << "row " << y << ", size " << size;
      }
    }
}

TEST_P(EveryEffectKernel, SharpenIsBitEqual) {
  for (const float factor : {0.0f, 0.4f, 1.9f})
    for (const int size : {3, 4, 33}) {
      const std::vector<uint8_t> in = random_pixels(size, 3);
      const size_t n = size_t(size - 2) * 3;
      std::vector<uint8_t> expected(n), found(n);
      for (int y = 1; y < size - 1; ++y) {
        const uint8_t* row = in.data() + (ptrdiff_t{y} * size + 1) * 3;
        plain.sharpen(row, size, factor, n, expected.data());
        fast.sharpen(row, size, factor, n, found.data());
        EXPECT_EQ(found, expected) << "row " << y << ", size " << size;
      }
    }
}

TEST_P(EveryEffectKernel, BlurIsBitEqual) {
  for (const int radius : {0, 1, 5}) {
    const int taps = 2 * radius + 1;
    std::vector<float> weight(static_cast<size_t>(taps), 1.0f);
    if (radius > 0) make_blur_weights(1.3f, radius, weight.data());
    for (const size_t n : {1u, 8u, 203u}) {
      const std::vector<uint8_t> in = random_pixels(16, 4);
      ASSERT_GE(in.size(), n + size_t(taps) * 3);
      std::vector<float> expected(n), found(n);
      plain.blur_across(weight.data(), taps, in.data(), n, expected.data());
      fast.blur_across(weight.data(), taps, in.data(), n, found.data());
      EXPECT_EQ(found, expected);
      std::vector<std::vector<float>> lines;
      std::vector<const float*> rows;
      for (int k = 0; k < taps; ++k) {
        lines.emplace_back(n);
        plain.blur_across(weight.data(), 1, in.data() + k, n, lines.back().data());
      }
      for (const auto& line : lines) rows.push_back(line.data());
      std::vector<uint8_t> levels(n), found_levels(n);
      plain.blur_down(weight.data(), taps, rows.data(), n, levels.data());
      fast.blur_down(weight.data(), taps, rows.data(), n, found_levels.data());
      EXPECT_EQ(found_levels, levels);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryEffectKernel,
                         ::testing::ValuesIn(testing::without_plain(all_effect_kernels())),
                         [](const auto& test) { return std::string(test.param.name); });

// The tests above run each of these; none is the plain version under another name.
TEST(EffectKernelTargets, AllOfThisCpuExistAndTheBestIsUsed) {
  testing::expect_every_target(all_effect_kernels(), effect_kernels());
  const EffectKernels& plain = plain_effect_kernels();
  for (const EffectKernels& fast : testing::without_plain(all_effect_kernels())) {
    EXPECT_NE(fast.recolour, plain.recolour) << fast.name;
    EXPECT_NE(fast.affine_row, plain.affine_row) << fast.name;
    EXPECT_NE(fast.sharpen, plain.sharpen) << fast.name;
    EXPECT_NE(fast.blur_across, plain.blur_across) << fast.name;
    EXPECT_NE(fast.blur_down, plain.blur_down) << fast.name;
  }
}

}  // namespace
}  // namespace saturate
