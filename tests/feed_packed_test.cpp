// Packed JPEGs, which the feeder decodes: batches are those of the loader's own decoder, to the
// bit. Here the CPU decodes them; gpu_packed_test.cpp does so on a GPU.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "saturate/feed.h"
#include "tests/packed_testing.h"

namespace saturate {
namespace {

using testing::ChangedDataset;
using testing::error_of;
using testing::packing_options;

AugmentOptions with_effects(const ImageSize& size, CropKind crop = CropKind::kRandomResized) {
  AugmentOptions augment;
  augment.size = size;
  augment.crop = crop;
  augment.rotate = 15;
  augment.contrast = 0.3;
  augment.erase = 0.5;
  return augment;
}

// The batches of an epoch from one on.
std::vector<DeviceBatch> batches_fed(const Dataset& data, const LoaderOptions& options,
                                     const AugmentOptions& augment,
                                     const PipelineOptions& stages = {}, size_t first = 0,
                                     bool channels_last = true) {
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, channels_last, ledger, augment);
  if (stages.any()) feeder.use_pipeline({stages});
  feeder.start_epoch(2, first);
  std::vector<DeviceBatch> batches;
  for (DeviceBatch batch; feeder.next(batch);) {
    batches.push_back(batch);
    batches.back().images = batch.images.clone();
  }
  feeder.stop();
  return batches;
}

void expect_same_bits(const std::vector<DeviceBatch>& found,
                      const std::vector<DeviceBatch>& expected) {
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i].images, expected[i].images)) << "batch " << i;
    EXPECT_TRUE(at::equal(found[i].labels, expected[i].labels)) << "batch " << i;
    EXPECT_EQ(found[i].names, expected[i].names);
    EXPECT_EQ(found[i].place, expected[i].place);
  }
}

class Packed : public ::testing::Test {
 protected:
  testing::TempDir dir;
  const std::shared_ptr<const Dataset> shard = testing::mixed_shard(dir);
};

TEST_F(Packed, BatchesHaveTheBitsOfTheLoadersDecoder) {
  for (const ImageSize size : {ImageSize(96), ImageSize(72, 112), ImageSize(75, 113)})
    for (const CropKind crop : {CropKind::kRandomResized, CropKind::kCenter, CropKind::kNone})
      for (const bool train : {true, false}) {
        SCOPED_TRACE(text_of(size) + ", crop " + std::to_string(int(crop)) +
                     (train ? ", train" : ""));
        AugmentOptions augment = with_effects(size, crop);
        augment.mixup = 0.5;
        LoaderOptions packs = packing_options(true), decodes = packing_options(false);
        packs.train = decodes.train = train;
        packs.names = decodes.names = true;
        const auto expected = batches_fed(*shard, decodes, augment);
        EXPECT_EQ(expected.back().count(), 3) << "the last batch is not full";
        expect_same_bits(batches_fed(*shard, packs, augment), expected);
      }
}

TEST_F(Packed, WithoutEffectsBatchesHaveTheSameBitsInEveryTypeAndLayout) {
  AugmentOptions augment;
  augment.size = {72, 112};
  augment.crop = CropKind::kRandomResized;
  for (const PixelType type : {PixelType::kFloat32, PixelType::kBfloat16, PixelType::kFloat16})
    for (const bool channels_last : {true, false})
      for (const Toggle copy : {Toggle::kOff, Toggle::kOn}) {
        augment.output = type;
        augment.mixup = type == PixelType::kFloat32 ? 0.5 : 0;
        const auto fed = [&](bool packs) {
          return batches_fed(*shard, packing_options(packs), augment, {.copy = copy}, 0,
                             channels_last);
        };
        const auto found = fed(true), expected = fed(false);
        expect_same_bits(found, expected);
        EXPECT_EQ(found.at(0).images.scalar_type(), expected[0].images.scalar_type());
        EXPECT_EQ(found[0].images.strides(), expected[0].images.strides());
      }
}

TEST_F(Packed, OnlyWithEffectsAreThereBytesToNormalise) {
  for (const bool effects : {true, false})
    for (const bool train : {true, false}) {
      AugmentOptions augment = with_effects(96);
      if (!effects) augment.rotate = augment.contrast = augment.erase = 0;
      LoaderOptions options = packing_options(true);
      options.train = train;
      Loader loader(*shard, options, augment);
      Ledger ledger(Env::posix());
      Feeder feeder(loader, at::kCPU, true, ledger, augment);
      feeder.leave_unfinished(true);
      feeder.start_epoch(0);
      DeviceBatch batch;
      ASSERT_TRUE(feeder.next(batch));
      const bool are_bytes = effects && train;
      EXPECT_EQ(batch.effects.defined(), are_bytes);
      EXPECT_EQ(batch.pixels.scalar_type(), are_bytes ? at::kByte : at::kFloat);
    }
}

TEST_F(Packed, MostJpegsInSegmentsArePackedAndNothingElse) {
  const size_t count = testing::packed_samples(*shard, with_effects(96));
  EXPECT_GT(count, testing::kJpegsInSegments / 2);
  EXPECT_LE(count, testing::kJpegsInSegments);
  EXPECT_GT(testing::packed_samples(*shard, with_effects({75, 113})), testing::kJpegsInSegments / 2)
      << "bytes of an image that are no multiple of 4";
  for (const CropKind crop : {CropKind::kPad, CropKind::kLetterbox}) {
    EXPECT_EQ(testing::packed_samples(*shard, with_effects(96, crop)), 0u);
    expect_same_bits(batches_fed(*shard, packing_options(true), with_effects(96, crop)),
                     batches_fed(*shard, packing_options(false), with_effects(96, crop)));
  }
}

// A file's parts are known once it has been decoded.
TEST_F(Packed, FilesArePackedFromTheSecondEpochOn) {
  const auto files = open_dataset(Env::posix(), "folder:" + (dir / "set"));
  const AugmentOptions augment = with_effects(96);
  Loader counted(*files, packing_options(true), augment);
  std::vector<size_t> counts;
  for (uint32_t epoch = 0; epoch < 2; ++epoch) {
    counts.push_back(0);
    counted.start_epoch(epoch);
    for (Batch batch; counted.next(batch);)
      for (const BatchSample& sample : batch.samples) counts.back() += sample.is_packed();
  }
  EXPECT_EQ(counts[0], 0u);
  EXPECT_GT(counts[1], testing::kJpegsInSegments / 4);

  Loader packs(*files, packing_options(true), augment);
  Loader decodes(*files, packing_options(false), augment);
  Ledger ledger(Env::posix());
  Feeder found(packs, at::kCPU, true, ledger, augment);
  Feeder expected(decodes, at::kCPU, true, ledger, augment);
  for (uint32_t epoch = 0; epoch < 3; ++epoch) {
    found.start_epoch(epoch);
    expected.start_epoch(epoch);
    DeviceBatch a, b;
    while (expected.next(b)) {
      ASSERT_TRUE(found.next(a));
      EXPECT_TRUE(at::equal(a.images, b.images)) << "epoch " << epoch << ", batch " << b.place;
    }
  }
}

TEST_F(Packed, PipelinesHaveTheSameBatches) {
  const AugmentOptions augment = with_effects(96);
  const auto expected = batches_fed(*shard, packing_options(false), augment);
  for (const bool augments : {false, true})
    expect_same_bits(batches_fed(*shard, packing_options(true), augment,
                                 {Toggle::kOn, augments, false, /*check=*/true}),
                     expected);
}

TEST_F(Packed, AnEpochContinuesFromABatch) {
  const AugmentOptions augment = with_effects(96);
  expect_same_bits(batches_fed(*shard, packing_options(true), augment, {}, 2),
                   batches_fed(*shard, packing_options(false), augment, {}, 2));
}

TEST_F(Packed, SkippedSamplesMoveThoseAfterThem) {
  const ChangedDataset data(shard, [](size_t index, Sample& sample) {
    if (index % 5 == 3) fail(ErrorKind::kData, "broken for this test", sample.name, "Ignore it");
  });
  LoaderOptions packs = packing_options(true), decodes = packing_options(false);
  packs.on_error = decodes.on_error = OnError::kSkip;
  expect_same_bits(batches_fed(data, packs, with_effects(96)),
                   batches_fed(data, decodes, with_effects(96)));
}

TEST_F(Packed, MasksHaveTheGeometryOfTheirImages) {
  const auto add_mask = [](size_t, Sample& sample) {
    StoredMask& mask = sample.mask;
    mask = {{}, true, sample.width, sample.height, sample.name + ", mask"};
    if (sample.encoding == SampleEncoding::kEncoded) {
      const ImageInfo info = Decoder().probe(sample.bytes, sample.name);
      mask.width = info.width;
      mask.height = info.height;
    }
    mask.bytes.resize(size_t(mask.width) * size_t(mask.height));
    for (size_t i = 0; i < mask.bytes.size(); ++i) mask.bytes[i] = std::byte(i / 40 % 2);
  };
  const ChangedDataset data(shard, add_mask, /*masks=*/true);
  LoaderOptions packs = packing_options(true), decodes = packing_options(false);
  packs.masks = decodes.masks = true;
  const AugmentOptions augment = with_effects({72, 112});
  const auto expected = batches_fed(data, decodes, augment);
  ASSERT_EQ(expected.at(0).labels.dim(), 3);
  expect_same_bits(batches_fed(data, packs, augment), expected);
}

TEST_F(Packed, ADamagedSampleIsAnErrorThatNamesIt) {
  const ChangedDataset data = testing::with_damage(shard, 4);
  for (const Toggle copy : {Toggle::kOff, Toggle::kOn}) {
    const Error error = error_of(
        [&] { batches_fed(data, packing_options(true), with_effects(96), {.copy = copy}); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    for (const char* part : {"sample 4", "data.decode_device=cpu", "data verify"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(Packed, OnlyUnfinishedBatchesOfFastDecodingCanBePacked) {
  LoaderOptions finished = packing_options(true), exact = packing_options(true);
  finished.output = BatchOutput::kInterleaved;
  exact.decode = DecodeMode::kExact;
  for (const LoaderOptions& options : {finished, exact})
    EXPECT_EQ(error_of([&] { Loader(*shard, options, with_effects(96)); }).kind(),
              ErrorKind::kUsage);
}

}  // namespace
}  // namespace saturate
