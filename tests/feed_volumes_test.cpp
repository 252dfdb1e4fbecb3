// Volumes that the feed transforms: equal to those of the loader's threads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "saturate/data/error.h"
#include "saturate/feed.h"
#include "tests/array_testing.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

constexpr size_t kSamples = 7;

// Samples of random fields: a value of one byte, so that others are not aligned, float32 volumes,
// uint8 ones with two channels, and labels of voxels. Sample `broken` cannot be read.
class RandomVolumes : public Dataset {
 public:
  RandomVolumes(bool only_one, size_t broken) : broken_(broken) {
    fields_ = {{"x", ElementType::kFloat32, {5, 6, 9}},
               {"y", ElementType::kInt16, {5, 6, 9}, /*is_target=*/true}};
    fields_[0].is_volume = true;
    if (only_one) return;
    fields_.push_back({"levels", ElementType::kUint8, {5, 6, 9, 2}});
    fields_.back().is_volume = true;
    fields_.insert(fields_.begin(), TensorField{"t", ElementType::kUint8, {}});
  }
  size_t size() const override { return kSamples; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t index, Sample& out) const override {
    if (index == broken_) fail(ErrorKind::kData, "it is broken", "sample", "Remove it");
    RandomStream random(1, 0, index, RandomUse(1000));
    out.bytes.clear();
    out.encoding = SampleEncoding::kTensors;
    for (const TensorField& field : fields_)
      for (size_t i = 0; i < field.bytes() / bytes_of(field.type); ++i) {
        const auto append = [&](auto value) {
          const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
          out.bytes.insert(out.bytes.end(), bytes, bytes + sizeof value);
        };
        if (field.type == ElementType::kFloat32) append(float(random.uniform(-1, 2)));
        if (field.type == ElementType::kUint8) append(uint8_t(random.below(256)));
        if (field.type == ElementType::kInt16) append(int16_t(random.below(5)));
      }
  }

 private:
  const size_t broken_;
  std::vector<TensorField> fields_;
  const std::vector<std::string> classes_;
};

struct Fed {
  std::vector<at::Tensor> images, labels;
};

enum class Mode { kInOrder, kLeft, kCopied, kPipeline };

Fed fed(const Dataset& data, BatchOutput output, const AugmentOptions& augment, Mode mode,
        bool train = true) {
  LoaderOptions options;
  options.batch = 3;
  options.output = output;
  options.train = train;
  options.on_error = OnError::kSkip;
  options.seed = 4;
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger, augment);
  feeder.leave_unfinished(mode == Mode::kLeft);
  if (mode >= Mode::kCopied) {
    PipelineSetup setup;
    setup.stages.copy = Toggle::kOn;
    setup.stages.augment = mode == Mode::kPipeline;
    setup.stages.check = true;
    feeder.use_pipeline(std::move(setup));
  }
  feeder.start_epoch(2);
  Fed out;
  for (DeviceBatch batch; feeder.next(batch);) {
    const int64_t count = batch.count();
    EXPECT_EQ(batch.is_unfinished(), mode == Mode::kLeft && batch.columns != nullptr);
    if (batch.columns) {  // as a captured step does, which finishes a copy
      batch.pixels = batch.pixels.clone();
      batch.labels = batch.labels.clone();
    }
    feeder.finish(batch);
    EXPECT_FALSE(batch.is_unfinished() || batch.columns);
    EXPECT_EQ(batch.count(), count);
    out.images.push_back(batch.images.clone());
    out.labels.push_back(batch.labels.clone());
  }
  return out;
}

void expect_equal(const Fed& found, const Fed& expected) {
  ASSERT_EQ(found.images.size(), expected.images.size());
  ASSERT_GE(found.images.size(), 2u);
  for (size_t i = 0; i < found.images.size(); ++i) {
    EXPECT_TRUE(at::equal(found.images[i], expected.images[i])) << "batch " << i;
    EXPECT_TRUE(at::equal(found.labels[i], expected.labels[i])) << "batch " << i;
  }
}

AugmentOptions crop() {
  AugmentOptions augment;
  augment.crop = CropKind::kRandom;
  augment.size = 4;
  augment.flip = 0.5;
  return augment;
}

AugmentOptions intensities() {
  AugmentOptions augment = crop();
  augment.brightness = augment.contrast = 0.3;
  augment.gaussian_noise = 0.1;
  augment.translate = 0.4;
  return augment;
}

AugmentOptions warp() {
  AugmentOptions augment = intensities();
  augment.contrast_gamma = true;
  augment.rotate = 30;
  augment.zoom = 0.2;
  return augment;
}

TEST(VolumeFeed, EqualsTheLoadersThreads) {
  AugmentOptions padded = warp();
  padded.crop = CropKind::kPad;
  padded.size = 0;
  padded.padding = 2;
  padded.pad_mode = PadMode::kReflect;
  for (const bool only_one : {true, false})
    for (const size_t broken : {kSamples, size_t{3}})
      for (const AugmentOptions& augment : {crop(), intensities(), warp(), padded}) {
        const RandomVolumes data(only_one, broken);
        const Fed expected = fed(data, BatchOutput::kTensors, augment, Mode::kInOrder);
        for (const Mode mode : {Mode::kInOrder, Mode::kLeft, Mode::kCopied, Mode::kPipeline}) {
          SCOPED_TRACE(std::to_string(int(mode)) + (only_one ? ", one" : "") + ", rotate " +
                       std::to_string(augment.rotate) + ", broken " + std::to_string(broken));
          expect_equal(fed(data, BatchOutput::kUnfinishedTensors, augment, mode), expected);
        }
      }
}

// The fields with work left, and the bytes that a sample of x takes in the batch.
std::string left_by(const AugmentOptions& augment, bool train = true) {
  const RandomVolumes data(/*only_one=*/true, kSamples);
  LoaderOptions options;
  options.batch = 2;
  options.output = BatchOutput::kUnfinishedTensors;
  options.train = train;
  Loader loader(data, options, augment);
  loader.start_epoch(0);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  std::string text;
  for (const BatchColumn& column : *batch.columns) text += column.form ? column.field.name : "";
  return text + " " + std::to_string(batch.columns->front().bytes_in_batch() / sizeof(float));
}

TEST(VolumeFeed, GetsWholeVolumesOnlyForAWarpAndNoRecordWithoutAnEffect) {
  EXPECT_EQ(left_by(crop()), " 64");
  EXPECT_EQ(left_by(intensities()), "x 64");
  EXPECT_EQ(left_by(warp()), "xy 270");
  EXPECT_EQ(left_by(warp(), /*train=*/false), " 64");
}

TEST(VolumeFeed, EvaluationIsTheCentre) {
  const RandomVolumes data(/*only_one=*/true, kSamples);
  expect_equal(fed(data, BatchOutput::kUnfinishedTensors, warp(), Mode::kInOrder, false),
               fed(data, BatchOutput::kTensors, warp(), Mode::kInOrder, false));
}

}  // namespace
}  // namespace saturate
