// The loader with images of a height and a width, letterboxed ones, and sizes that change by epoch.
#include <gtest/gtest.h>

#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::MemoryDataset;

MemoryDataset jpegs() {
  std::vector<std::string> files;
  for (int i = 0; i < 9; ++i)
    files.push_back(
        testing::to_text(testing::encode_as(testing::test_picture(60 + 17 * i, 150 - 9 * i),
                                            {.name = "", .across = 1 + i % 2, .down = 1})));
  return MemoryDataset(std::move(files));
}

AugmentOptions sized(CropKind crop, const ImageSize& size) {
  AugmentOptions augment;
  augment.crop = crop;
  augment.size = size;
  return augment;
}

TEST(Sizes, FastDecodingCropsAndPadsLikeExactDecoding) {
  const MemoryDataset data = jpegs();
  for (const CropKind crop :
       {CropKind::kRandomResized, CropKind::kCenter, CropKind::kLetterbox, CropKind::kNone})
    for (const ImageSize size : {ImageSize(24, 56), ImageSize(71, 33)})
      for (uint32_t i = 0; i < data.size(); ++i) {
        const auto fast = testing::read_pixels(data, DecodeMode::kFast, i, sized(crop, size));
        const auto exact = testing::read_pixels(data, DecodeMode::kExact, i, sized(crop, size));
        double difference = 0;
        for (size_t k = 0; k < fast.size(); ++k)
          difference += std::abs(int(fast[k]) - int(exact[k])) / double(fast.size());
        EXPECT_LT(difference, 1.5) << int(crop) << ", " << text_of(size) << ", " << i;
      }
}

// The padding normalises to nearly 0 in every type and layout, fast and exact.
TEST(Sizes, LetterboxPadsWithTheMean) {
  const MemoryDataset data({testing::to_text(
      testing::encode_as(testing::test_picture(40, 90), {.name = "", .across = 2, .down = 2}))});
  for (const DecodeMode decode : {DecodeMode::kExact, DecodeMode::kFast})
    for (const BatchOutput output : {BatchOutput::kInterleaved, BatchOutput::kPlanar}) {
      LoaderOptions options;
      options.decode = decode;
      options.output = output;
      options.train = false;
      Loader loader(data, options, sized(CropKind::kLetterbox, {36, 60}));  // 16 columns remain
      loader.start_epoch(0);
      Batch batch;
      ASSERT_TRUE(loader.next(batch));
      EXPECT_EQ(batch.size, ImageSize(36, 60));
      const auto* values = reinterpret_cast<const float*>(batch.pixels.get());
      for (size_t c = 0; c < 3; ++c)
        for (size_t y = 0; y < 36; ++y)
          for (const size_t x : {0, 21, 38, 59}) {
            const bool is_planar = output == BatchOutput::kPlanar;
            EXPECT_NEAR(values[is_planar ? (c * 36 + y) * 60 + x : (y * 60 + x) * 3 + c], 0, 0.01)
                << "column " << x << ", row " << y << ", channel " << c;
          }
    }
}

// Red is 40 times the class, so that pixels and masks can be compared.
class TellingWide : public Dataset {
 public:
  size_t size() const override { return 20; }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return true; }
  void read(size_t index, Sample& out) const override {
    out.name = "telling:" + std::to_string(index);
    out.encoding = SampleEncoding::kRaw;
    out.width = kWidth;
    out.height = kHeight;
    out.channels = 3;
    out.mask = {{}, true, kWidth, kHeight, out.name};
    out.bytes.clear();
    RandomStream random(3, 0, index, RandomUse::kSynthetic);
    for (int i = 0; i < kWidth * kHeight; ++i) {
      const auto number = uint8_t(1 + random.below(5));
      out.mask.bytes.push_back(std::byte{number});
      out.bytes.insert(out.bytes.end(), {std::byte(number * 40), std::byte{0}, std::byte{0}});
    }
  }
  static constexpr int kHeight = 10, kWidth = 26;

 private:
  std::vector<std::string> classes_{"0", "1", "2", "3", "4", "5"};
};

// Compares every pixel with its mask; returns the pixels without a class.
int64_t ignored_pixels(const AugmentOptions& augment, int padding_red) {
  const TellingWide data;
  LoaderOptions options;
  options.batch = 8;
  options.masks = true;
  options.type = PixelType::kUint8;
  Loader loader(data, options, augment);
  loader.start_epoch(0);
  int64_t ignored = 0;
  for (Batch batch; loader.next(batch);)
    for (size_t i = 0; i < batch.count() * size_t(augment.size.area()); ++i) {
      const auto red = uint8_t(batch.pixels.get()[3 * i]);
      const bool outside = red == padding_red;
      EXPECT_EQ(uint8_t(batch.masks.get()[i]), outside ? kIgnoredClass : red / 40) << i;
      ignored += outside;
      if (::testing::Test::HasFailure()) return ignored;
    }
  return ignored;
}

TEST(Sizes, MasksFollowImagesThatAreNotSquare) {
  AugmentOptions shifted = sized(CropKind::kPad, {TellingWide::kHeight, TellingWide::kWidth});
  EXPECT_GT(ignored_pixels(shifted, 0), 500);
  AugmentOptions moved = sized(CropKind::kNone, {TellingWide::kHeight, TellingWide::kWidth});
  moved.translate = 0.3;
  EXPECT_GT(ignored_pixels(moved, 0), 500);
}

// 26 x 10 fits into 26 x 13: one row of padding above and two below, in all 20 images. An odd row
// moves nothing when the image is flipped.
TEST(Sizes, MasksIgnoreLetterboxPadding) {
  const int red = int(std::lround(255 * AugmentOptions().mean[0]));
  EXPECT_EQ(ignored_pixels(sized(CropKind::kLetterbox, {13, 26}), red), 20 * 3 * 26);
  EXPECT_EQ(ignored_pixels(sized(CropKind::kLetterbox, {10, 31}), red), 20 * 5 * 10);
}

std::vector<uint64_t> hashes_of(Loader& loader, uint32_t epoch, size_t first, const ImageSize& size,
                                bool masks) {
  loader.start_epoch(epoch, first);
  std::vector<uint64_t> hashes;
  for (Batch batch; loader.next(batch);) {
    EXPECT_EQ(batch.size, size) << "epoch " << epoch;
    const size_t area = size_t(size.area()) * batch.count();
    hashes.push_back(testing::hash_bytes({batch.pixels.get(), 3 * area * bytes_of(batch.type)}));
    if (masks) hashes.push_back(testing::hash_bytes({batch.masks.get(), area}));
  }
  return hashes;
}

// A loader's epochs have the pixels of loaders of one size, also after a resume within an epoch.
void expect_sizes(const Dataset& data, LoaderOptions options, AugmentOptions augment) {
  augment.size_changes = {{0, 16}, {2, {16, 24}}, {3, {40, 24}}};
  augment.size = {40, 24};
  options.batch = 4;
  options.threads = 2;
  options.masks = data.has_masks();
  Loader loader(data, options, augment);
  const ImageSize sizes[] = {16, 16, {16, 24}, {40, 24}, {40, 24}};
  for (const uint32_t epoch : {0, 1, 2, 3, 4, 1}) {
    AugmentOptions one = augment;
    one.size_changes.clear();
    one.size = sizes[epoch];
    Loader other(data, options, one);
    for (const size_t first : {0, 1})
      EXPECT_EQ(hashes_of(loader, epoch, first, sizes[epoch], options.masks),
                hashes_of(other, epoch, first, sizes[epoch], options.masks))
          << "epoch " << epoch << " from batch " << first;
  }
  options.train = false;
  Loader evaluation(data, options, augment);
  EXPECT_FALSE(hashes_of(evaluation, 0, 0, {40, 24}, options.masks).empty());
}

TEST(Sizes, ChangeByEpochAndAreAPureFunctionOfIt) {
  const MemoryDataset data = jpegs();
  AugmentOptions augment = sized(CropKind::kRandomResized, 16);
  augment.cutmix = 1;
  augment.translate = 0.2;
  augment.blur = 0.5;
  for (const BatchOutput output :
       {BatchOutput::kInterleaved, BatchOutput::kPlanar, BatchOutput::kUnfinished}) {
    LoaderOptions options;
    options.output = output;
    expect_sizes(data, options, augment);
  }
  LoaderOptions fast;
  fast.decode = DecodeMode::kFast;
  fast.type = PixelType::kBfloat16;
  expect_sizes(data, fast, sized(CropKind::kLetterbox, 16));
  expect_sizes(TellingWide(), {}, sized(CropKind::kPad, 16));
}

}  // namespace
}  // namespace saturate
