// Volumes: the resampling next to scipy's, the rows of the CPU next to the voxels of the CPU
// version of the kernel, and what is drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "image/volume_kernels.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"
#include "tests/image_testing.h"
#include "tests/simd_testing.h"

namespace saturate {
namespace {

VolumeForm form_of(std::array<int, 3> in, std::array<int, 3> out, int channels = 1,
                   VoxelType type = VoxelType::kFloat32) {
  VolumeForm form{};
  std::copy(in.begin(), in.end(), form.in);
  std::copy(out.begin(), out.end(), form.out);
  form.channels = channels;
  form.type = type;
  return form;
}

std::vector<float> random_values(int64_t n, uint64_t seed) {
  RandomStream random(seed, 0, 0, RandomUse::kSynthetic);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = float(random.normal());
  return values;
}

template <class Value>
std::vector<Value> applied(const VolumeForm& form, const VolumeEffects& effects,
                           const std::vector<Value>& in) {
  VolumeScratch scratch;
  std::vector<Value> out(size_t(form.values_out()));
  apply_volume(form, effects, in.data(), scratch, out.data());
  return out;
}

template <class Value>
std::vector<Value> by_voxels(const VolumeForm& form, const VolumeEffects& effects,
                             const std::vector<Value>& in) {
  std::vector<Value> out(size_t(form.values_out()));
  transform_volumes_cpu({form, in.data(), &effects, out.data(), 1});
  return out;
}

// ---- Resampling --------------------------------------------------------------------------------

TEST(Volume, ResamplesAsScipyDoes) {
  const auto bytes = read_file(Env::posix(), testing::golden("volumes.bin"));
  size_t at = 0;
  const auto take = [&](auto& values) {
    ASSERT_LE(at + values.size() * 4, bytes.size());
    std::memcpy(values.data(), bytes.data() + at, values.size() * 4);
    at += values.size() * 4;
  };
  for (std::istringstream& line : testing::golden_lines("volumes.txt")) {
    std::string mode;
    line >> mode;
    VolumeForm form{};
    for (int& size : form.in) line >> size;
    for (int& size : form.out) line >> size;
    VolumeEffects effects;
    for (float& value : effects.matrix) line >> value;
    ASSERT_TRUE(line);
    form.pad_mode = mode == "zero" ? PadMode::kZero : PadMode::kReflect;
    std::vector<float> in(size_t(form.values_in())), expected(size_t(form.values_out()));
    std::vector<int32_t> labels(expected.size()), numbers(in.size());
    take(in), take(expected), take(labels);
    const std::vector<float> found = applied(form, effects, in);
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 5e-5) << mode << ", value " << i;
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = int32_t(i);
    form.type = VoxelType::kLabel32;
    form.outside = uint64_t(int64_t{-100});
    EXPECT_EQ(applied(form, effects, numbers), labels) << mode;
  }
  EXPECT_EQ(at, bytes.size());
}

// Transforms of all kinds: whole shifts within and beyond the volume, and warps of any size.
VolumeEffects any_effects(RandomStream& random, const VolumeForm& form) {
  AugmentOptions options;
  options.crop = random.bernoulli(0.5) ? CropKind::kRandom : CropKind::kPad;
  options.padding = 5;
  options.size = form.out[0];
  if (random.bernoulli(0.7)) {
    options.rotate = random.uniform(0, 180);
    options.zoom = random.uniform(0, 0.9);
    options.shear = random.uniform(0, 40);
  }
  options.translate = random.bernoulli(0.2) ? 1 : 0.1;
  VolumeForm larger = form;  // so that the crop fits
  for (int axis = 0; axis < 3; ++axis) larger.in[axis] = std::max(form.in[axis], form.out[axis]);
  VolumeEffects effects = draw_volume(options, {random.next_u64(), 0, 0}, larger, {-1, 1, 0});
  if (random.bernoulli(0.5)) {
    effects.scale = 1.3f;
    effects.shift = -0.2f;
    effects.noise = 0.1f;
    effects.seed = random.next_u32();
  }
  return effects;
}

template <class Value>
void expect_same_as_voxels(VoxelType type, bool gamma = false) {
  RandomStream random(uint64_t(type) + 1, 0, 0, RandomUse::kSynthetic);
  for (int trial = 0; trial < 60; ++trial) {
    const auto side = [&](uint64_t most) { return int(1 + random.below(most)); };
    VolumeForm form =
        form_of({side(9), side(9), side(50)}, {side(9), side(9), side(50)}, side(3), type);
    form.pad_mode = random.bernoulli(0.3) ? PadMode::kReflect : PadMode::kZero;
    form.outside = 77;
    VolumeEffects effects = any_effects(random, form);
    if (gamma) effects.gamma = 1.7f, effects.low = -2, effects.range = 4;
    std::vector<Value> in(size_t(form.values_in()));
    const auto values = random_values(form.values_in(), uint64_t(trial));
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = sizeof(Value) == 4 ? Value(values[i]) : Value(std::abs(values[i]) * 80);
    const auto found = applied(form, effects, in), expected = by_voxels(form, effects, in);
    if (!gamma) {
      ASSERT_EQ(found, expected) << "trial " << trial;
      continue;
    }
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(double(found[i]), double(expected[i]), sizeof(Value) == 1 ? 1 : 2e-6)
          << "trial " << trial;
  }
}

TEST(Volume, RowsEqualVoxels) {
  expect_same_as_voxels<float>(VoxelType::kFloat32);
  expect_same_as_voxels<uint8_t>(VoxelType::kUint8);
  expect_same_as_voxels<uint8_t>(VoxelType::kLabel8);
  expect_same_as_voxels<uint16_t>(VoxelType::kLabel16);
  expect_same_as_voxels<int32_t>(VoxelType::kLabel32);
  expect_same_as_voxels<int64_t>(VoxelType::kLabel64);
}

TEST(Volume, GammaOfRowsIsWithinRoundingOfVoxels) {
  expect_same_as_voxels<float>(VoxelType::kFloat32, /*gamma=*/true);
  expect_same_as_voxels<uint8_t>(VoxelType::kUint8, /*gamma=*/true);
}

TEST(Volume, ABlockOfEachVolumeComputesItsTurns) {
  const VolumeForm form = form_of({5, 6, 7}, {4, 5, 6});
  std::vector<VolumeEffects> effects(3);
  effects[1].scale = 2;
  effects[2].matrix[3] = 1;
  const auto in = random_values(form.values_in() * 3, 4);
  std::vector<float> expected(size_t(form.values_out() * 3)), found(expected);
  transform_volumes_cpu({form, in.data(), effects.data(), expected.data(), 3});
  const VolumeArguments batch{form, in.data(), effects.data(), found.data(), 3};
  for (int i = 0; i < 3; ++i)
    for (int part = 0; part < 4; ++part) transform_volume(LoneTeam(), batch, i, part, 4);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(volume_parts(batch, 256), 1);
}

// ---- Kernels -----------------------------------------------------------------------------------

class EveryVolumeKernel : public ::testing::TestWithParam<VolumeKernels> {};

TEST_P(EveryVolumeKernel, InterpolatesBitEqual) {
  for (const int channels : {1, 3}) {
    const VolumeForm form = form_of({4, 5, 80}, {1, 1, 70}, channels);
    const auto in = random_values(form.values_in(), 5);
    const VolumeLine line{{0.1f, 3.9f, 2.3f}, {0.04f, -0.05f, 1.05f}};
    std::vector<float> expected(70 * size_t(channels), 9.0f), found(expected);
    for (const int last : {3, 16, 47, 70}) {
      plain_volume_kernels().interpolate(form, in.data(), line, 2, last, expected.data());
      GetParam().interpolate(form, in.data(), line, 2, last, found.data());
      EXPECT_EQ(found, expected) << last;
    }
  }
}

TEST_P(EveryVolumeKernel, ChangesBitEqualButForGamma) {
  VolumeEffects effects;
  effects.scale = 1.3f, effects.shift = -0.4f, effects.noise = 0.7f, effects.seed = 0x9abcdef1;
  for (const float gamma : {1.0f, 0.6f})
    for (const size_t n : {1u, 7u, 16u, 133u}) {
      effects.gamma = gamma, effects.low = -1, effects.range = 2.5f;
      std::vector<float> expected = random_values(int64_t(n), 6), found = expected;
      plain_volume_kernels().change(effects, 0xfffffff0, n, expected.data());
      GetParam().change(effects, 0xfffffff0, n, found.data());
      for (size_t i = 0; i < n; ++i) EXPECT_NEAR(found[i], expected[i], gamma == 1 ? 0 : 2e-6) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryVolumeKernel,
                         ::testing::ValuesIn(testing::without_plain(all_volume_kernels())),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(VolumeKernelTargets, AllOfThisCpuExistAndTheBestIsUsed) {
  testing::expect_every_target(all_volume_kernels(), volume_kernels());
}

// ---- Draws -------------------------------------------------------------------------------------

AugmentOptions no_options() {
  AugmentOptions options;
  options.flip = 0;
  return options;
}

TEST(VolumeDraws, WithoutOptionsNothingChanges) {
  const VolumeForm form = form_of({4, 5, 6}, {4, 5, 6}, 2);
  const VolumeEffects effects = draw_volume(no_options(), {1, 2, 3}, form, {});
  EXPECT_EQ(std::memcmp(effects.matrix, VolumeEffects().matrix, sizeof effects.matrix), 0);
  const auto in = random_values(form.values_in(), 1);
  EXPECT_EQ(applied(form, effects, in), in);
  EXPECT_EQ(applied(form, eval_volume(form), in), in);
}

TEST(VolumeDraws, FlipsEachAxisForItself) {
  AugmentOptions options;
  options.flip = 0.5;
  const VolumeForm form = form_of({2, 3, 4}, {2, 3, 4});
  std::vector<float> in(24);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
  std::set<std::array<bool, 3>> seen;
  for (uint64_t sample = 0; sample < 60; ++sample) {
    const VolumeEffects effects = draw_volume(options, {5, 0, sample}, form, {});
    const std::array<bool, 3> flip{effects.matrix[0] < 0, effects.matrix[5] < 0,
                                   effects.matrix[10] < 0};
    seen.insert(flip);
    const auto out = applied(form, effects, in);
    for (int z = 0; z < 2; ++z)
      for (int y = 0; y < 3; ++y)
        for (int x = 0; x < 4; ++x)
          ASSERT_EQ(out[size_t((z * 3 + y) * 4 + x)],
                    float(((flip[0] ? 1 - z : z) * 3 + (flip[1] ? 2 - y : y)) * 4 +
                          (flip[2] ? 3 - x : x)));
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(VolumeDraws, CropsAreInsideAndCoverTheVolume) {
  AugmentOptions options = no_options();
  options.crop = CropKind::kRandom;
  options.size = 4;
  VolumeForm form = form_of({3, 6, 9}, {});
  set_volume_size(options, form.in, form.out);
  EXPECT_EQ((std::array{form.out[0], form.out[1], form.out[2]}), (std::array{3, 4, 4}));
  std::set<float> rows, columns;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const VolumeEffects effects = draw_volume(options, {5, 0, sample}, form, {});
    EXPECT_EQ(effects.matrix[3], 0);
    rows.insert(effects.matrix[7]);
    columns.insert(effects.matrix[11]);
  }
  EXPECT_EQ(rows, (std::set<float>{0, 1, 2}));
  EXPECT_EQ(columns, (std::set<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(eval_volume(form).matrix[7], 1);
  EXPECT_EQ(eval_volume(form).matrix[11], 2);
}

TEST(VolumeDraws, AffineKeepsTheCropsCentreAndItsVolume) {
  AugmentOptions options = no_options();
  options.rotate = 90;
  options.shear = 30;
  const VolumeForm form = form_of({20, 30, 40}, {20, 30, 40});
  for (uint64_t sample = 0; sample < 20; ++sample) {
    const VolumeEffects effects = draw_volume(options, {5, 0, sample}, form, {});
    const float* const m = effects.matrix;
    for (int axis = 0; axis < 3; ++axis) {
      const float* const row = m + axis * 4;
      EXPECT_NEAR(row[0] * 9.5f + row[1] * 14.5f + row[2] * 19.5f + row[3],
                  float(form.in[axis] - 1) / 2, 1e-4);
    }
    const double determinant = double(m[0]) * (m[5] * m[10] - m[6] * m[9]) -
                               double(m[1]) * (m[4] * m[10] - m[6] * m[8]) +
                               double(m[2]) * (m[4] * m[9] - m[5] * m[8]);
    EXPECT_NEAR(determinant, 1, 1e-5) << "rotations and shears keep volumes";
  }
  options = no_options();
  options.zoom = 0.5;
  options.translate = 0.2;
  std::set<float> shifts;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const VolumeEffects effects = draw_volume(options, {5, 0, sample}, form, {});
    const float scale = 1 / effects.matrix[0];
    EXPECT_TRUE(scale >= 0.5f && scale <= 1.5f && effects.matrix[5] == effects.matrix[0]);
    const float moved = 9.5f - (effects.matrix[3] + effects.matrix[0] * 9.5f);
    shifts.insert(std::round(moved * scale));
    EXPECT_NEAR(moved * scale, std::round(moved * scale), 1e-4) << "whole voxels";
  }
  EXPECT_EQ(shifts.size(), 9u) << "-4 to 4 of 20 voxels";
}

TEST(VolumeDraws, ASliceStaysFlat) {
  AugmentOptions options = no_options();
  options.rotate = 180;
  options.shear = 30;
  options.translate = 1;
  options.zoom = 0.5;
  options.crop = CropKind::kPad;
  const VolumeForm form = form_of({1, 8, 9}, {1, 8, 9});
  const VolumeEffects effects = draw_volume(options, {5, 0, 2}, form, {});
  const float slice[] = {1, 0, 0, 0};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(effects.matrix[i], slice[i]);
  EXPECT_NE(effects.matrix[6], 0);
}

TEST(VolumeDraws, IntensityFollowsTheVolumesRange) {
  AugmentOptions options = no_options();
  options.contrast = 0.5;
  const VolumeForm form = form_of({2, 2, 2}, {2, 2, 2});
  const VolumeRange range{-3, 5, 2};
  VolumeEffects effects = draw_volume(options, {5, 0, 2}, form, range);
  EXPECT_NE(effects.scale, 1);
  EXPECT_NEAR(2 * effects.scale + effects.shift, 2, 1e-6) << "the mean stays";
  options.contrast_gamma = true;
  effects = draw_volume(options, {5, 0, 2}, form, range);
  EXPECT_EQ(effects.scale, 1);
  EXPECT_TRUE(effects.gamma >= 1 / 1.5f && effects.gamma <= 1.5f && effects.gamma != 1);
  EXPECT_NEAR(changed_value(effects, 0, -3), -3, 1e-6);
  EXPECT_NEAR(changed_value(effects, 0, 5), 5, 1e-6);
  EXPECT_NEAR(changed_value(effects, 0, 1), -3 + 8 * std::pow(0.5, double(effects.gamma)), 1e-5);
  EXPECT_EQ(draw_volume(options, {5, 0, 2}, form, {4, 4, 4}).gamma, 1) << "a constant volume";
}

TEST(VolumeDraws, RangeIsExact) {
  for (const int64_t n : {1, 15, 16, 17, 4096, 9999}) {
    auto values = random_values(n, 8);
    double sum = 0;
    for (const float value : values) sum += double(value);
    const VolumeRange range = volume_range(VoxelType::kFloat32, values.data(), size_t(n));
    EXPECT_EQ(range.low, *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(range.high, *std::max_element(values.begin(), values.end()));
    EXPECT_NEAR(range.mean, sum / double(n), 1e-6);
  }
  const std::vector<uint8_t> levels{3, 255, 0, 6};
  const VolumeRange range = volume_range(VoxelType::kUint8, levels.data(), 4);
  EXPECT_EQ((std::array{range.low, range.high, range.mean}), (std::array{0.0f, 255.0f, 66.0f}));
}

TEST(VolumeDraws, EachPurposeHasItsOwnNumbers) {
  AugmentOptions options;
  options.rotate = 20;
  options.crop = CropKind::kRandom;
  options.size = 4;
  VolumeForm form = form_of({8, 8, 8}, {4, 4, 4});
  const VolumeEffects before = draw_volume(options, {5, 1, 2}, form, {});
  options.brightness = options.contrast = 0.3;
  options.gaussian_noise = 0.1;
  const VolumeEffects after = draw_volume(options, {5, 1, 2}, form, {});
  EXPECT_EQ(std::memcmp(before.matrix, after.matrix, sizeof after.matrix), 0);
  EXPECT_NE(after.scale, 1);
  EXPECT_FLOAT_EQ(after.noise, 0.1f);
  form.type = VoxelType::kUint8;
  EXPECT_FLOAT_EQ(draw_volume(options, {5, 1, 2}, form, {}).noise, 25.5f);
  const VolumeEffects other = draw_volume(options, {5, 2, 2}, form, {});
  EXPECT_NE(std::memcmp(after.matrix, other.matrix, sizeof after.matrix), 0) << "another epoch";
}

TEST(VolumeDraws, OptionsOfImagesAreRefused) {
  const auto reason = [](auto change) {
    AugmentOptions options;
    change(options);
    try {
      check_volume_options(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(error.reason(), "does not apply to volumes");
      return error.where();
    }
    return std::string();
  };
  EXPECT_EQ(reason([](AugmentOptions&) {}), "");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.crop = CropKind::kRandom, o.size = 4; }), "");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.crop = CropKind::kPad; }), "");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.size = 4; }), "augment.size without a crop");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.crop = CropKind::kRandomResized; }),
            "augment.crop=random_resized");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.flip_alternate = true; }), "augment.flip=alternate");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.policy = Policy::kRand; }), "augment.policy");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.hue = 0.1; }), "augment.hue");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.blur = 0.1; }), "augment.blur");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.erase = 0.1; }), "augment.erase");
  EXPECT_EQ(reason([](AugmentOptions& o) { o.eval_resize = 1.1; }), "augment.eval_resize");
}

}  // namespace
}  // namespace saturate
