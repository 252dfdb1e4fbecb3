// data.cache=device, compared with a loader that decodes each time.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "feed/resident.h"
#include "saturate/feed.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;

struct Fed {
  at::Tensor images, labels;
  std::vector<std::string> names;
};

LoaderOptions loader_options(bool train) {
  LoaderOptions options;
  options.batch = 7;
  options.threads = 3;
  options.train = train;
  options.names = true;
  options.seed = 5;
  return options;
}

std::vector<Fed> all_batches(Loader& loader, Feeder& feeder) {
  std::vector<Fed> all;
  for (uint32_t epoch : {0u, 3u}) {
    loader.start_epoch(epoch);
    for (DeviceBatch batch; feeder.next(batch);)
      all.push_back({batch.images.clone(), batch.labels, batch.names});
  }
  return all;
}

std::vector<Fed> decoded_each_time(const Dataset& data, const LoaderOptions& options,
                                   const AugmentOptions& augment) {
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger, augment);
  return all_batches(loader, feeder);
}

std::vector<Fed> from_the_device(const Dataset& data, LoaderOptions options,
                                 const AugmentOptions& augment) {
  const ResidentImages resident(data, "memory:", options, augment, at::kCPU);
  options.output = BatchOutput::kPlaces;
  options.held = resident.samples();
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger, augment, resident.held());
  return all_batches(loader, feeder);
}

void expect_same_batches(const std::vector<Fed>& found, const std::vector<Fed>& expected) {
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].images.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::equal(found[i].images, expected[i].images)) << "batch " << i;
    EXPECT_TRUE(at::equal(found[i].labels, expected[i].labels)) << "batch " << i;
    EXPECT_EQ(found[i].names, expected[i].names) << "batch " << i;
  }
}

AugmentOptions small_augment(CropKind crop) {
  AugmentOptions augment;
  augment.size = 10;
  augment.crop = crop;
  augment.padding = 3;
  return augment;
}

// JPEGs of several sizes; those in `broken` are not images.
MemoryDataset photographs(const std::vector<size_t>& broken = {}) {
  std::vector<std::string> files;
  for (size_t i = 0; i < 30; ++i)
    files.push_back(testing::noise_jpeg(10 + int(i % 4), 10 + int(i % 3), i));
  for (size_t i : broken) files[i] = "broken";
  return MemoryDataset(files);
}

TEST(Resident, BatchesEqualThoseOfALoaderThatDecodesEachTime) {
  const MemoryDataset data = photographs();
  for (const CropKind crop : {CropKind::kNone, CropKind::kCenter, CropKind::kPad}) {
    for (const PadMode mode : {PadMode::kZero, PadMode::kReflect}) {
      for (const bool train : {true, false}) {
        SCOPED_TRACE(::testing::Message()
                     << "crop " << int(crop) << ", padded " << int(mode) << ", train " << train);
        AugmentOptions augment = small_augment(crop);
        augment.pad_mode = mode;
        expect_same_batches(from_the_device(data, loader_options(train), augment),
                            decoded_each_time(data, loader_options(train), augment));
      }
    }
  }
}

// Cropped from whole photographs in training, and from images of the final size in evaluation.
TEST(Resident, RandomResizedCropsEqualThoseOfALoaderThatDecodesEachTime) {
  const MemoryDataset data = photographs({3, 29});
  for (const int size : {4, 10, 24}) {
    for (const bool train : {true, false}) {
      for (const PixelType output : {PixelType::kFloat32, PixelType::kFloat16}) {
        SCOPED_TRACE(::testing::Message()
                     << "size " << size << ", train " << train << ", type " << int(output));
        AugmentOptions augment = small_augment(CropKind::kRandomResized);
        augment.size = size;
        augment.output = output;
        augment.eval_resize = 1.2;
        augment.brightness = 0.3;
        augment.blur = 0.5;
        LoaderOptions options = loader_options(train);
        options.on_error = OnError::kSkip;
        options.type = output;
        expect_same_batches(from_the_device(data, options, augment),
                            decoded_each_time(data, options, augment));
      }
    }
  }
}

TEST(Resident, BatchesOfAHeightAndAWidthEqualTheLoadersToo) {
  const MemoryDataset data = photographs();
  for (const CropKind crop :
       {CropKind::kCenter, CropKind::kPad, CropKind::kLetterbox, CropKind::kRandomResized})
    for (const ImageSize size : {ImageSize(7, 12), ImageSize(20, 9)}) {
      SCOPED_TRACE(::testing::Message() << "crop " << int(crop) << ", " << text_of(size));
      AugmentOptions augment = small_augment(crop);
      augment.size = size;
      augment.rotate = 20;
      augment.blur = 0.5;
      expect_same_batches(from_the_device(data, loader_options(true), augment),
                          decoded_each_time(data, loader_options(true), augment));
    }
}

TEST(Resident, AnAlternatingFlipEqualsTheLoadersForCropsToo) {
  const MemoryDataset data = photographs();
  AugmentOptions augment = small_augment(CropKind::kRandomResized);
  augment.flip_alternate = true;
  expect_same_batches(from_the_device(data, loader_options(true), augment),
                      decoded_each_time(data, loader_options(true), augment));
}

TEST(Resident, EffectsAreAppliedOnTheDevice) {
  const MemoryDataset data = photographs();
  AugmentOptions augment = small_augment(CropKind::kPad);
  augment.rotate = 20;
  augment.brightness = augment.hue = 0.3;
  augment.blur = augment.erase = augment.mixup = 0.5;
  expect_same_batches(from_the_device(data, loader_options(true), augment),
                      decoded_each_time(data, loader_options(true), augment));
}

TEST(Resident, BrokenSamplesAreSkippedOrEndTheRun) {
  const MemoryDataset data = photographs({0, 3, 4, 29});
  const AugmentOptions augment = small_augment(CropKind::kPad);
  LoaderOptions options = loader_options(true);
  const Error error =
      error_of([&] { ResidentImages(data, "memory:", options, augment, at::kCPU); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), "memory:0");
  options.on_error = OnError::kSkip;
  expect_same_batches(from_the_device(data, options, augment),
                      decoded_each_time(data, options, augment));
}

TEST(Resident, TooManyImagesAreOneErrorBeforeAnythingIsRead) {
  AugmentOptions augment = small_augment(CropKind::kNone);
  augment.size = 1 << 15;
  class Unread : public MemoryDataset {
   public:
    Unread() : MemoryDataset(std::vector<std::string>(100'000)) {}
    void read(size_t, Sample&) const override { ADD_FAILURE() << "a sample was read"; }
  };
  const Unread data;
  const Error error =
      error_of([&] { ResidentImages(data, "memory:", loader_options(true), augment, at::kCPU); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "memory:");
  EXPECT_NE(error.reason().find("322122.5 GB"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
