// Batches of a packing loader, unpacked: the pixels of one that decodes, wherever samples are.
#include <gtest/gtest.h>

#include <algorithm>

#include "image/packed_jpeg.h"
#include "tests/packed_testing.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

using testing::packing_options;

AugmentOptions crops(const ImageSize& size) {
  AugmentOptions augment;
  augment.size = size;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

struct Found {
  std::vector<std::vector<uint8_t>> pixels;  // of each batch
  size_t packed = 0, larger = 0;             // samples, and of them those larger than pixels
};

std::vector<uint8_t> pixels_of(const Batch& batch) {
  std::vector<PackedPlace> places;
  size_t end = 0;
  const size_t bytes = pixel_bytes(batch.size);
  for (const BatchSample& sample : batch.samples) {
    places.push_back(sample.stored);
    end = std::max(end, sample.stored.at * PackedPlace::kUnit +
                            (sample.is_packed() ? sample.stored.bytes : bytes));
  }
  const auto found =
      testing::unpack_places(unpack_jpegs_cpu, {batch.pixels.get(), end}, places, batch.size);
  EXPECT_EQ(std::ranges::count(found.failed, 1), 0);
  return found.pixels;
}

Found batches_of(const Dataset& data, const LoaderOptions& options, const AugmentOptions& augment) {
  Loader loader(data, options, augment);
  loader.start_epoch(1);
  Found found;
  for (Batch batch; loader.next(batch);) {
    const size_t bytes = pixel_bytes(batch.size);
    EXPECT_EQ(batch.packs, options.packs);
    if (options.packs) {
      found.pixels.push_back(pixels_of(batch));
    } else {
      const auto* const from = reinterpret_cast<const uint8_t*>(batch.pixels.get());
      found.pixels.emplace_back(from, from + batch.count() * bytes);
    }
    for (const BatchSample& sample : batch.samples) {
      found.packed += sample.is_packed();
      found.larger += sample.stored.bytes > bytes;
    }
  }
  return found;
}

class PackedLoader : public ::testing::Test {
 protected:
  testing::TempDir dir;
  const std::shared_ptr<const Dataset> shard = testing::mixed_shard(dir);
};

TEST_F(PackedLoader, PixelsDoNotDependOnTheOrderOfPlaces) {
  size_t larger = 0;
  for (const ImageSize size : {ImageSize(96), ImageSize(75, 113), ImageSize(48), ImageSize(32)})
    for (const int threads : {1, 3}) {
      LoaderOptions packs = packing_options(true), decodes = packing_options(false);
      packs.threads = threads;
      packs.batch = decodes.batch = 7;
      const Found found = batches_of(*shard, packs, crops(size));
      EXPECT_EQ(found.pixels, batches_of(*shard, decodes, crops(size)).pixels) << text_of(size);
      larger += found.larger;
      if (size.height > 48) {
        EXPECT_GT(found.packed, testing::kJpegsInSegments / 2);
      }
    }
  EXPECT_GT(larger, 0u) << "this tests little";
}

TEST_F(PackedLoader, SkippedSamplesMoveNoBytes) {
  const testing::ChangedDataset data(shard, [](size_t index, Sample& sample) {
    if (index % 5 == 3) fail(ErrorKind::kData, "broken for this test", sample.name, "Ignore it");
  });
  LoaderOptions packs = packing_options(true), decodes = packing_options(false);
  packs.on_error = decodes.on_error = OnError::kSkip;
  EXPECT_EQ(batches_of(data, packs, crops(96)).pixels, batches_of(data, decodes, crops(96)).pixels);
}

// The loader decodes these crops, also of JPEGs in segments, to places in the batch's memory.
TEST_F(PackedLoader, LetterboxesAndPaddedImagesHavePlacesToo) {
  for (const CropKind crop : {CropKind::kPad, CropKind::kLetterbox}) {
    AugmentOptions augment = crops(96);
    augment.crop = crop;
    const Found found = batches_of(*shard, packing_options(true), augment);
    EXPECT_EQ(found.packed, 0u);
    EXPECT_EQ(found.pixels, batches_of(*shard, packing_options(false), augment).pixels);
  }
}

}  // namespace
}  // namespace saturate
