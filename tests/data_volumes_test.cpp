// Volumes in the loader: which fields are augmented, their sizes in batches, and their labels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "saturate/data/loader.h"
#include "tests/array_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::npy;
using testing::raw;
using testing::TempDir;
using testing::values_of;
using testing::write_file;

constexpr int kSamples = 6, kDepth = 3, kHeight = 5, kWidth = 8, kVoxels = 3 * 5 * 8;

// Arrays x, float32 volumes of the voxels' numbers, y, their labels: the numbers in int16, and t, a
// value that comes first and is of one byte, so that others are not aligned.
std::string written(const TempDir& dir) {
  std::vector<float> x(kSamples * kVoxels);
  std::iota(x.begin(), x.end(), 0.0f);
  const std::vector<int16_t> y(x.begin(), x.end());
  const std::vector<uint8_t> t{1, 2, 3, 4, 5, 6};
  write_file(dir / "x.npy", npy("<f4", "6, 3, 5, 8", raw(x)));
  write_file(dir / "y.npy", npy("<i2", "6, 3, 5, 8", raw(y)));
  write_file(dir / "t.npy", npy("|u1", "6,", raw(t)));
  return "npy:" + dir.path() + ",fields=t+x+y,volume=x";
}

AugmentOptions random_crop(int size) {
  AugmentOptions augment;
  augment.crop = CropKind::kRandom;
  augment.size = size;
  return augment;
}

struct Columns {
  std::vector<uint32_t> index;
  std::vector<float> x;
  std::vector<int16_t> y;
  std::vector<uint8_t> t;
  std::vector<int64_t> shape;
  bool operator==(const Columns&) const = default;
};

Columns batch_of(const Dataset& dataset, const LoaderOptions& options,
                 const AugmentOptions& augment, uint32_t epoch = 0) {
  Loader loader(dataset, options, augment);
  loader.start_epoch(epoch);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  Columns out;
  for (const BatchSample& sample : batch.samples) out.index.push_back(sample.index);
  for (const BatchColumn& column : *batch.columns) {
    const size_t bytes = column.field.bytes() * batch.count();
    const std::span values(batch.pixels.get() + column.offset, bytes);
    if (column.field.name == "x") out.x = values_of<float>(values, bytes / 4);
    if (column.field.name == "y") out.y = values_of<int16_t>(values, bytes / 2);
    if (column.field.name == "t") out.t = values_of<uint8_t>(values, bytes);
    if (column.field.name == "x") out.shape = column.field.shape;
    if (column.field.name == "y") {
      EXPECT_EQ(column.field.shape, out.shape);
    }
  }
  return out;
}

TEST(VolumeLoader, CropsAndFlipsVolumesAndTheirLabelsAlike) {
  const TempDir dir;
  const auto dataset = open_dataset(env(), written(dir));
  EXPECT_TRUE(dataset->tensors()[1].is_volume);
  EXPECT_FALSE(dataset->tensors()[2].is_volume);
  const Columns batch = batch_of(*dataset, testing::tensor_options(kSamples), random_crop(4));
  EXPECT_EQ(batch.shape, (std::vector<int64_t>{3, 4, 4}));
  ASSERT_EQ(batch.x.size(), size_t(kSamples * 48));
  for (size_t i = 0; i < batch.x.size(); ++i) ASSERT_EQ(batch.x[i], float(batch.y[i]));
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const float* const x = batch.x.data() + sample * 48;
    EXPECT_EQ(int(x[0]) / kVoxels, int(batch.index[sample]));
    EXPECT_EQ(batch.t[sample], batch.index[sample] + 1);
    EXPECT_EQ(std::abs(x[1] - x[0]), 1) << "along the width";
    EXPECT_EQ(std::abs(x[4] - x[0]), kWidth);
    EXPECT_EQ(std::abs(x[16] - x[0]), kHeight * kWidth);
  }
}

TEST(VolumeLoader, DependsOnSeedEpochAndSampleOnly) {
  const TempDir dir;
  const auto dataset = open_dataset(env(), written(dir));
  AugmentOptions augment = random_crop(4);
  augment.rotate = 30;
  augment.contrast = 0.4;
  augment.gaussian_noise = 0.1;
  const Columns batch = batch_of(*dataset, testing::tensor_options(kSamples), augment);
  EXPECT_EQ(batch_of(*dataset, testing::tensor_options(kSamples, 3), augment), batch);
  EXPECT_NE(batch_of(*dataset, testing::tensor_options(kSamples), augment, 1).x, batch.x);
  LoaderOptions other = testing::tensor_options(kSamples);
  other.seed = 4;
  EXPECT_NE(batch_of(*dataset, other, augment).x, batch.x);
}

TEST(VolumeLoader, EachVolumeOfASampleHasNoiseOfItsOwn) {
  const TempDir dir;
  const std::vector<float> zeros(kSamples * kVoxels);
  for (const char* name : {"x.npy", "z.npy"})
    write_file(dir / name, npy("<f4", "6, 3, 5, 8", raw(zeros)));
  const auto noise = [&](const std::string& fields) {
    const auto dataset =
        open_dataset(env(), "npy:" + dir.path() + ",fields=" + fields + ",volume=" + fields);
    AugmentOptions augment;
    augment.gaussian_noise = 0.1;
    return batch_of(*dataset, testing::tensor_options(kSamples), augment).x;
  };
  const std::vector<float> alone = noise("x"), first = noise("x+z"), second = noise("z+x");
  EXPECT_EQ(first, alone);
  double product = 0, square = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    product += double(alone[i]) * double(second[i]);
    square += double(alone[i]) * double(alone[i]);
  }
  EXPECT_LT(std::abs(product), 0.2 * square);
}

TEST(VolumeLoader, LabelsOutsideTheVolumeAreIgnored) {
  const TempDir dir;
  const auto dataset = open_dataset(env(), written(dir));
  AugmentOptions augment;
  augment.translate = 1;
  augment.flip = 0;
  const Columns batch = batch_of(*dataset, testing::tensor_options(kSamples), augment);
  EXPECT_EQ(batch.shape, (std::vector<int64_t>{kDepth, kHeight, kWidth}));
  size_t outside = 0;
  for (size_t i = 0; i < batch.x.size(); ++i) {
    outside += batch.y[i] == -100 ? 1u : 0u;
    ASSERT_EQ(batch.x[i], batch.y[i] == -100 ? 0.0f : float(batch.y[i]));
  }
  EXPECT_GT(outside, 0u);
}

TEST(VolumeLoader, EvaluationTakesTheCentre) {
  const TempDir dir;
  const auto dataset = open_dataset(env(), written(dir));
  AugmentOptions augment = random_crop(4);
  augment.rotate = 30;
  augment.brightness = 0.5;
  LoaderOptions options = testing::tensor_options(kSamples);
  options.train = false;
  options.shuffle.mode = ShuffleMode::kNone;
  const Columns batch = batch_of(*dataset, options, augment);
  EXPECT_EQ(batch.x[0], 2) << "voxel (0, 0, 2)";
  EXPECT_EQ(batch.x[47], float((2 * kHeight + 3) * kWidth + 5));
  EXPECT_EQ(batch.y[47], int16_t(batch.x[47]));
}

TEST(VolumeLoader, OtherTensorsAreCopied) {
  const TempDir dir;
  written(dir);
  const auto dataset = open_dataset(env(), "npy:" + dir.path());
  AugmentOptions augment;
  augment.rotate = 30;
  augment.policy = Policy::kTrivial;
  const Columns batch = batch_of(*dataset, testing::tensor_options(kSamples), augment);
  for (size_t sample = 0; sample < kSamples; ++sample)
    EXPECT_EQ(batch.x[sample * kVoxels + 7], float(batch.index[sample] * kVoxels + 7));
  EXPECT_EQ(batch_fields(*dataset, augment), dataset->tensors());
}

TEST(VolumeLoader, RefusesWhatCannotBe) {
  const TempDir dir;
  const std::string source = written(dir);
  const auto dataset = open_dataset(env(), source);
  const auto reason = [](const auto& action) { return error_of(action).reason(); };
  AugmentOptions augment;
  augment.hue = 0.1;
  const Error error =
      error_of([&] { Loader(*dataset, testing::tensor_options(kSamples), augment); });
  EXPECT_EQ(error.reason(), "does not apply to volumes");
  EXPECT_EQ(error.where(), "augment.hue");
  EXPECT_EQ(reason([&] { open_dataset(env(), "npy:" + dir.path() + ",volume=y"); }),
            "array \"y\" has values that are neither float32 nor uint8");
  EXPECT_EQ(reason([&] { open_dataset(env(), "npy:" + dir.path() + ",volume=t"); }),
            "array \"t\" is not one of volumes");
  EXPECT_EQ(reason([&] { open_dataset(env(), "npy:" + dir.path() + ",volume=z"); }),
            "there is no array \"z\"");
  const auto plain = open_dataset(env(), "npy:" + dir.path());
  EXPECT_EQ(
      error_of([&] { Loader(*plain, testing::tensor_options(kSamples), random_crop(4)); }).where(),
      "augment.crop=random");
  write_file(dir / "w.npy", npy("<f4", "6, 1, 2, 2", raw(std::vector<float>(24))));
  const auto two = open_dataset(env(), "npy:" + dir.path() + ",volume=x+w");
  EXPECT_EQ(reason([&] { Loader(*two, testing::tensor_options(kSamples), {}); }),
            "volumes of a sample differ in size");
}

TEST(VolumeLoader, AClassOf255WithHigherOnesIsAWarning) {
  const TempDir dir;
  std::vector<int16_t> labels(300);
  std::iota(labels.begin(), labels.end(), int16_t{0});
  testing::ZipText zip(true);
  zip.add("x.npy", npy("<f4", "1, 3, 10, 10", raw(std::vector<float>(300))));
  zip.add("y.npy", npy("<i2", "1, 3, 10, 10", raw(labels)));
  write_file(dir / "a.npz", zip.text());
  const auto dataset = open_dataset(env(), "npz:" + (dir / "a.npz") + ",volume=x");
  EXPECT_NE(dataset->warning().find("class 255 are ignored, and the classes go up to 299"),
            std::string::npos);
}

TEST(VolumeLoader, OptionsOfVolumesAreNotForImages) {
  const testing::MemoryDataset images({testing::noise_jpeg(8, 8, 1)}, {"a"});
  LoaderOptions options;
  options.batch = 1;
  EXPECT_EQ(error_of([&] { Loader(images, options, random_crop(8)); }).where(),
            "augment.crop=random");
  AugmentOptions augment;
  augment.size = 8;
  augment.contrast = 0.5;
  augment.contrast_gamma = true;
  EXPECT_EQ(error_of([&] { Loader(images, options, augment); }).where(), "augment.contrast=gamma");
}

}  // namespace
}  // namespace saturate
