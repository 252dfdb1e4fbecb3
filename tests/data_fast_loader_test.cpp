// The loader with data.decode = "fast".
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/sample_reader.h"
#include "tests/count_allocations.h"
#include "tests/data_testing.h"
#include "tests/jpeg_encoding.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::MemoryDataset;
using testing::TempDir;
using testing::test_picture;
using testing::to_text;

// JPEGs of several kinds, one of which EXIF turns, and a PNG, which only the exact path decodes.
std::vector<std::string> mixed_files() {
  std::vector<std::string> files;
  for (int i = 0; i < 24; ++i) {
    const testing::JpegKind kind{"", JCS_YCbCr, 1 + i % 2, 1, i % 5 == 0};
    files.push_back(to_text(encode_as(test_picture(60 + 7 * i, 150 - 3 * i), kind)));
  }
  files.push_back(testing::read_text(testing::source_path("tests/goldens/image/inputs/rgb.png")));
  files.push_back(
      testing::read_text(testing::source_path("tests/goldens/image/inputs/exif_6.jpg")));
  return files;
}

AugmentOptions augmentation() {
  AugmentOptions augment;
  augment.size = 48;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

std::vector<uint64_t> batch_hashes(const Dataset& data, int threads, PixelType type,
                                   DecodeMode decode) {
  LoaderOptions options;
  options.batch = 5;
  options.threads = threads;
  options.type = type;
  options.decode = decode;
  Loader loader(data, options, augmentation());
  loader.start_epoch(3);
  std::vector<uint64_t> hashes;
  const size_t image = 48 * 48 * 3 * (type == PixelType::kUint8 ? 1 : sizeof(float));
  for (Batch batch; loader.next(batch);)
    hashes.push_back(testing::hash_bytes({batch.pixels.get(), batch.count() * image}));
  return hashes;
}

TEST(FastLoader, BatchesDoNotDependOnTheNumberOfThreads) {
  const MemoryDataset data(mixed_files());
  for (const PixelType type : {PixelType::kUint8, PixelType::kFloat32}) {
    const auto one = batch_hashes(data, 1, type, DecodeMode::kFast);
    EXPECT_EQ(one.size(), 6u);
    for (const int threads : {2, 5})
      EXPECT_EQ(batch_hashes(data, threads, type, DecodeMode::kFast), one);
    EXPECT_NE(batch_hashes(data, 1, type, DecodeMode::kExact), one);
  }
}

// From the second epoch on, positions inside the files are known.
TEST(FastLoader, LaterEpochsHaveThePixelsOfALoaderThatBeginsWithThem) {
  std::vector<std::string> files;
  for (int i = 0; i < 12; ++i)
    files.push_back(to_text(encode_as(test_picture(300 + 40 * i, 500 - 20 * i),
                                      {.name = "", .across = 1 + i % 2, .down = 1 + i / 2 % 2})));
  const MemoryDataset data(files);
  LoaderOptions options;
  options.batch = 5;
  options.threads = 2;
  options.type = PixelType::kUint8;
  options.decode = DecodeMode::kFast;
  Loader all(data, options, augmentation());
  for (uint32_t epoch = 0; epoch < 5; ++epoch) {
    Loader fresh(data, options, augmentation());
    all.start_epoch(epoch);
    fresh.start_epoch(epoch);
    Batch batch, expected;
    while (fresh.next(expected)) {
      ASSERT_TRUE(all.next(batch));
      const size_t bytes = expected.count() * 48 * 48 * 3;
      EXPECT_EQ(testing::hash_bytes({batch.pixels.get(), bytes}),
                testing::hash_bytes({expected.pixels.get(), bytes}))
          << "epoch " << epoch;
    }
  }
}

// The crop depends on the size of the image as it is displayed.
TEST(FastLoader, DrawsTheSameCropsAsExactMode) {
  const MemoryDataset data(mixed_files());
  for (uint32_t i = 0; i < data.size(); ++i) {
    const auto fast = testing::read_pixels(data, DecodeMode::kFast, i, augmentation());
    const auto exact = testing::read_pixels(data, DecodeMode::kExact, i, augmentation());
    double difference = 0;
    for (size_t k = 0; k < fast.size(); ++k)
      difference += std::abs(int(fast[k]) - int(exact[k])) / double(fast.size());
    EXPECT_LT(difference, 1.5) << i;
  }
}

TEST(FastLoader, FilesThatOnlyTheExactPathDecodesAreExact) {
  const MemoryDataset data(mixed_files());
  EXPECT_EQ(testing::read_pixels(data, DecodeMode::kFast, 24, augmentation()),
            testing::read_pixels(data, DecodeMode::kExact, 24, augmentation()));
  AugmentOptions padded = augmentation();
  padded.crop = CropKind::kPad;
  EXPECT_EQ(testing::read_pixels(data, DecodeMode::kFast, 3, padded),
            testing::read_pixels(data, DecodeMode::kExact, 3, padded));
}

TEST(FastLoader, AllocatesNothingAfterWarmUp) {
  if (!testing::allocation_count()) GTEST_SKIP() << "a sanitizer owns operator new";
  const TempDir dir;
  for (int i = 0; i < 12; ++i) {
    const testing::JpegKind kind{"", JCS_YCbCr, 1 + i % 2, 1 + i % 2, i == 7};
    testing::write_file(dir / (i % 2 ? "a/" : "b/") + std::to_string(i) + ".jpg",
                        to_text(encode_as(test_picture(400, 300 + i), kind)));
  }
  const auto data = open_dataset(Env::posix(), "folder:" + dir.path());
  for (const PixelType type : {PixelType::kUint8, PixelType::kFloat32}) {
    LoaderOptions options;
    options.type = type;
    options.decode = DecodeMode::kFast;
    const AugmentOptions augment = augmentation();
    SampleReader reader(*data, options, augment);
    std::vector<std::byte> out(48 * 48 * 3 * sizeof(float));
    const auto read_all = [&](uint32_t epoch) {
      BatchSample sample;
      for (; sample.index < data->size(); ++sample.index) reader.read(epoch, sample, out.data());
    };
    for (uint32_t epoch = 0; epoch < 20; ++epoch) read_all(epoch);
    const auto before = testing::allocation_count();
    for (uint32_t epoch = 0; epoch < 20; ++epoch) read_all(epoch);
    EXPECT_EQ(testing::allocation_count(), before);
  }
}

}  // namespace
}  // namespace saturate
