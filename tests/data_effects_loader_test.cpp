// The loader with effects, and with batches for MixUp and CutMix.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "data/sample_reader.h"
#include "saturate/data/loader.h"
#include "tests/count_allocations.h"
#include "tests/data_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::MemoryDataset;

constexpr size_t kSize = 24, kValues = kSize * kSize * 3;

MemoryDataset photographs() {
  std::vector<std::string> files;
  for (int i = 0; i < 15; ++i)
    files.push_back(testing::to_text(
        testing::encode_as(testing::test_picture(60 + i, 90 - i), {"", JCS_YCbCr, 1, 1, false})));
  return MemoryDataset(std::move(files));
}

AugmentOptions plain() {
  AugmentOptions augment;
  augment.size = kSize;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

AugmentOptions with_effects() {
  AugmentOptions augment = plain();
  augment.rotate = 30;
  augment.contrast = 0.5;
  augment.blur = 0.5;
  augment.erase = 0.5;
  return augment;
}

LoaderOptions loader_options(DecodeMode decode, PixelType type) {
  LoaderOptions options;
  options.batch = 4;
  options.seed = 5;
  options.decode = decode;
  options.type = type;
  return options;
}

std::vector<std::byte> read_one(const Dataset& data, const LoaderOptions& options,
                                const AugmentOptions& augment, uint32_t index) {
  std::vector<std::byte> out(kValues * (options.type == PixelType::kFloat32 ? sizeof(float) : 1));
  BatchSample sample{index};
  SampleReader(data, options, augment).read(3, sample, out.data());
  return out;
}

TEST(FlipAlternate, ShowsBothSidesInTwoEpochsEquallyOften) {
  std::vector<std::string> files;
  for (uint64_t i = 0; i < 400; ++i) files.push_back(testing::noise_jpeg(8, 8, i));
  const MemoryDataset data(std::move(files));
  AugmentOptions augment;
  augment.size = 8;
  augment.flip_alternate = true;
  const LoaderOptions options = loader_options(DecodeMode::kExact, PixelType::kUint8);
  LoaderOptions as_it_is = options;
  as_it_is.train = false;
  SampleReader reader(data, options, augment);
  SampleReader plain_reader(data, as_it_is, augment);
  using Pixels = std::array<std::array<std::array<std::byte, 3>, 8>, 8>;
  const auto read = [](SampleReader& of, uint32_t epoch, uint32_t index) {
    Pixels pixels;
    BatchSample sample{index};
    of.read(epoch, sample, pixels[0][0].data());
    return pixels;
  };
  int flips = 0;
  for (uint32_t index = 0; index < 400; ++index) {
    Pixels mirrored = read(plain_reader, 0, index);
    const Pixels plain_pixels = mirrored;
    for (auto& row : mirrored) std::reverse(row.begin(), row.end());
    const bool flipped = read(reader, 0, index) == mirrored;
    flips += flipped;
    for (uint32_t epoch = 0; epoch < 5; ++epoch)
      ASSERT_EQ(read(reader, epoch, index), (flipped == (epoch % 2 == 0)) ? mirrored : plain_pixels)
          << index << " in epoch " << epoch;
  }
  EXPECT_NEAR(flips, 200, 50);
}

TEST(LoaderEffects, AreAppliedBetweenFlipAndNormalisation) {
  const MemoryDataset data = photographs();
  EffectScratch scratch;
  for (const DecodeMode decode : {DecodeMode::kExact, DecodeMode::kFast})
    for (uint32_t i = 0; i < data.size(); ++i) {
      LoaderOptions options = loader_options(decode, PixelType::kUint8);
      auto expected = read_one(data, options, plain(), i);
      auto* pixels = reinterpret_cast<uint8_t*>(expected.data());
      apply_effects(draw_effects(with_effects(), {5, 3, i}), int(kSize), scratch, pixels);
      EXPECT_EQ(read_one(data, options, with_effects(), i), expected);
      options.type = PixelType::kFloat32;
      std::vector<float> floats(kValues);
      normalize_pixels(make_normalize(plain()), {pixels, kValues}, floats.data());
      const auto bytes = std::as_bytes(std::span(floats));
      EXPECT_EQ(read_one(data, options, with_effects(), i),
                std::vector<std::byte>(bytes.begin(), bytes.end()));
    }
}

TEST(LoaderEffects, AreNotAppliedInEvaluation) {
  const MemoryDataset data = photographs();
  LoaderOptions options = loader_options(DecodeMode::kExact, PixelType::kUint8);
  options.train = false;
  EXPECT_EQ(read_one(data, options, with_effects(), 2), read_one(data, options, plain(), 2));
}

TEST(LoaderEffects, AllocateNothingAfterWarmUp) {
  if (!testing::allocation_count()) GTEST_SKIP() << "a sanitizer owns operator new";
  EffectScratch scratch;
  std::vector<uint8_t> pixels(kValues, 9);
  const AugmentOptions augment = with_effects();
  const auto apply_all = [&] {
    for (uint32_t i = 0; i < 50; ++i)
      apply_effects(draw_effects(augment, {5, 3, i}), int(kSize), scratch, pixels.data());
  };
  apply_all();
  const auto before = testing::allocation_count();
  apply_all();
  EXPECT_EQ(testing::allocation_count(), before);
}

std::vector<Mix> mixes(int threads, size_t first, bool train, double mixup) {
  const MemoryDataset data = photographs();
  LoaderOptions options = loader_options(DecodeMode::kExact, PixelType::kUint8);
  options.threads = threads;
  options.train = train;
  AugmentOptions augment = plain();
  augment.mixup = mixup;
  Loader loader(data, options, augment);
  loader.start_epoch(2, first);
  std::vector<Mix> found;
  for (Batch batch; loader.next(batch);) found.push_back(batch.mix);
  return found;
}

TEST(LoaderMix, IsDrawnForEachBatchWhereverTheEpochBegins) {
  const auto all = mixes(1, 0, true, 1), resumed = mixes(3, 2, true, 1);
  ASSERT_EQ(all.size(), 4u);
  ASSERT_EQ(resumed.size(), 2u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].kind, MixKind::kMixUp);
    if (i >= 2) {
      EXPECT_EQ(resumed[i - 2].lambda, all[i].lambda);
    } else if (i > 0) {
      EXPECT_NE(all[i].lambda, all[i - 1].lambda);
    }
  }
}

TEST(LoaderMix, IsOffInEvaluationAndByDefault) {
  for (const auto& found : {mixes(1, 0, false, 1), mixes(1, 0, true, 0)}) {
    ASSERT_EQ(found.size(), 4u);
    for (const Mix& mix : found) EXPECT_EQ(mix.kind, MixKind::kNone);
  }
}

}  // namespace
}  // namespace saturate
