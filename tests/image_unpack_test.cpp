// Packed JPEGs: unpacking returns the bits of fast decoding, and survives anything in its bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "image/unpack_passes.h"
#include "saturate/data/random.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::header_of;
using testing::JpegKind;
using testing::kPackedKinds;
using testing::MixedBatch;
using testing::pack_sample;
using testing::PackedSample;
using testing::split_file;
using testing::SplitFile;
using testing::test_picture;
using testing::unpack_alone;
using testing::Unpacked;

std::string crop_text(const Box& crop, const ImageSize& size) {
  return " crop " + std::to_string(crop.x) + "," + std::to_string(crop.y) + " " +
         std::to_string(crop.width) + "x" + std::to_string(crop.height) + " to " +
         std::to_string(size.width) + "x" + std::to_string(size.height);
}

// Whether it could be packed; then it must be unpacked to the same bits.
bool expect_same_bits(const PackedSample& sample, const ImageSize& size, const std::string& name) {
  if (sample.packed.empty()) return false;
  const Unpacked found = unpack_alone(sample.packed, size);
  EXPECT_EQ(found.failed[0], 0) << name;
  EXPECT_TRUE(found.pixels == sample.expected) << name;
  return true;
}

// At every border and corner, inside, of few pixels, of everything.
std::vector<Box> crops_to_unpack(int width, int height) {
  const int w = width / 2, h = height / 2;
  std::vector<Box> boxes = {{0, 0, width, height}, {0, h, width, 1}, {w, 0, 1, height}};
  for (const int x : {0, w / 2 + 1, width - w})
    for (const int y : {0, h / 2 + 1, height - h}) boxes.push_back({x, y, w, h});
  for (const int x : {0, 31, 32, width - 1})
    for (const int y : {0, 15, 16, height - 1}) boxes.push_back({x, y, 1, 1});
  return boxes;
}

TEST(Unpack, EqualsFastDecodingForEverySamplingCropSizeAndSegment) {
  FastDecoder decoder;
  for (const JpegKind& kind : kPackedKinds) {
    int packed = 0, all = 0;
    for (const auto& [width, height] : {std::pair{131, 97}, {134, 60}, {256, 33}}) {
      const auto file = encode_as(test_picture(width, height), kind, 60);
      for (const int mcus : {1, 2, 8}) {
        const SplitFile segments = split_file(file, mcus);
        SegmentedJpeg jpeg;
        jpeg.open(segments.bytes, width, height, "x");
        for (const Box& crop : crops_to_unpack(width, height)) {
          for (const ImageSize size : {ImageSize(96), ImageSize(64, 90), ImageSize(150, 34)}) {
            const SampleTransform transform{crop, 0, 0, (crop.x + mcus) % 2 == 1};
            ++all;
            packed += expect_same_bits(pack_sample(decoder, jpeg, transform, size), size,
                                       kind.name + crop_text(crop, size));
          }
        }
      }
    }
    EXPECT_GT(packed, all * 9 / 10) << kind.name;
  }
}

// Each reduced size of blocks.
TEST(Unpack, EqualsFastDecodingAtEveryScale) {
  FastDecoder decoder;
  int packed[9] = {};
  for (const JpegKind& kind : kPackedKinds) {
    for (const auto& [width, height, side] :
         {std::tuple{700, 523, 96}, {500, 460, 100}, {900, 800, 96}, {1700, 1600, 98}}) {
      Image picture = test_picture(width, height);
      // The smallest blocks are of tiles of whole blocks, which take few bits.
      for (size_t i = 0; side == 98 && i < picture.pixels.size(); ++i)
        picture.pixels[i] = uint8_t(40 + (i % 5100 / 2400 * 37 + i / 5100 / 800 * 53) % 170);
      const SplitFile segments = split_file(encode_as(picture, kind, 10), side == 98 ? 106 : 24);
      ASSERT_FALSE(segments.bytes.empty());
      SegmentedJpeg jpeg;
      jpeg.open(segments.bytes, width, height, "x");
      for (const Box& crop : {Box{0, 0, width, height}, Box{5, 7, width - 20, height - 9},
                              Box{width / 3, height / 4, width / 2, height / 2}}) {
        for (const bool flip : {false, true}) {
          const ImageSize size(side, side + 2);
          const PackedSample sample = pack_sample(decoder, jpeg, {crop, 0, 0, flip}, size);
          if (expect_same_bits(sample, size, kind.name + crop_text(crop, size)))
            ++packed[header_of(sample).size[0]];
        }
      }
    }
  }
  for (const int size : {1, 2, 4, 8}) EXPECT_GE(packed[size], size == 1 ? 4 : 8) << size;
}

TEST(Unpack, EqualsFastDecodingOnRandomPictures) {
  FastDecoder decoder;
  RandomStream random(11, 0, 0, RandomUse::kSynthetic);
  int packed = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    const int width = 100 + int(random.below(300)), height = 60 + int(random.below(300));
    Image picture = test_picture(width, height);
    const uint32_t noise = 1 + uint32_t(random.below(random.below(2) ? 8 : 120));
    for (uint8_t& value : picture.pixels) value = uint8_t(value + random.below(noise));
    const JpegKind& kind = kPackedKinds[random.below(std::size(kPackedKinds))];
    const SplitFile segments =
        split_file(encode_as(picture, kind, 20 + int(random.below(80))), 1 << random.below(4));
    if (segments.bytes.empty()) continue;
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, width, height, "x");
    const ImageSize size(2 * int(32 + random.below(60)), int(60 + random.below(130)) / 2 * 2);
    const SampleTransform transform{
        random_resized_crop(random, width, height, 0.08, 1, 3.0 / 4, 4.0 / 3), 0, 0,
        random.below(2) == 1};
    packed += expect_same_bits(pack_sample(decoder, jpeg, transform, size), size,
                               kind.name + crop_text(transform.crop, size));
  }
  EXPECT_GT(packed, kRounds / 2);
}

// A file without segments, all of whose points an index has.
TEST(Unpack, EqualsFastDecodingBetweenPoints) {
  ScanIndex index;
  FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  for (const JpegKind& kind : kPackedKinds) {
    int packed = 0;
    for (const int quality : {20, 75, 95}) {
      const auto file = encode_as(test_picture(331, 203), kind, quality);
      ASSERT_EQ(decoder.find_points(file, "x"), FastDecoder::Points::kFound);
      for (const Box& crop : crops_to_unpack(331, 203)) {
        for (const ImageSize size : {ImageSize(112), ImageSize(140, 90)}) {
          const SampleTransform transform{crop, 0, 0, crop.y % 2 == 1};
          packed += expect_same_bits(
              pack_sample(decoder, std::span<const std::byte>(file), transform, size), size,
              kind.name + crop_text(crop, size));
        }
      }
    }
    EXPECT_GT(packed, 100) << kind.name;
  }
}

TEST(Unpack, EqualsFastDecodingInEveryOrientation) {
  ScanIndex index;
  FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  for (const JpegKind& kind : kPackedKinds) {
    const auto upright = encode_as(test_picture(331, 203), kind, 60);
    for (int orientation = 1; orientation <= 8; ++orientation) {
      const auto file = testing::with_marker(upright, 0xe1, testing::exif(orientation));
      ASSERT_EQ(decoder.find_points(file, "x"), FastDecoder::Points::kFound);
      for (const Box& crop : {Box{0, 0, 203, 203}, Box{20, 3, 90, 160}, Box{103, 150, 100, 53}}) {
        for (const ImageSize size : {ImageSize(112), ImageSize(140, 90)}) {
          for (const bool flip : {false, true}) {
            const SampleTransform transform{crop, 0, 0, flip};
            EXPECT_TRUE(expect_same_bits(
                pack_sample(decoder, std::span<const std::byte>(file), transform, size), size,
                kind.name + std::to_string(orientation) + crop_text(crop, size)));
          }
        }
      }
    }
  }
}

TEST(Unpack, NoticesPointsThatDoNotAgreeWithTheData) {
  const auto file = encode_as(test_picture(331, 203), kPackedKinds[2], 75);
  ScanPoints points;
  {
    ScanIndex index;
    FastDecoder finder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
    ASSERT_EQ(finder.find_points(file, "x"), FastDecoder::Points::kFound);
    index.find(scan_key(file), points);
  }
  const ImageSize size(112);
  int noticed = 0, packed = 0;
  for (size_t i = 0; i < points.point.size(); ++i) {
    for (const bool moved : {false, true}) {
      ScanPoints wrong = points;
      moved ? wrong.point[i].bit += 1 : wrong.point[i].dc[i % 3] += 1;
      ScanIndex index;
      index.keep(scan_key(file), wrong);
      FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
      const PackedSample sample = pack_sample(decoder, std::span<const std::byte>(file),
                                              {{0, 0, 331, 203}, 0, 0, false}, size);
      if (sample.packed.empty()) continue;
      ++packed;
      const Unpacked found = unpack_alone(sample.packed, size);
      noticed += found.failed[0];
      EXPECT_TRUE(found.failed[0] == 1 || found.pixels == sample.expected) << i;
    }
  }
  EXPECT_GT(packed, 50);
  EXPECT_GE(noticed, packed * 95 / 100);
}

TEST(Unpack, WhatCannotBePackedIsStillOpenForReading) {
  const auto file = encode_as(test_picture(200, 150), kPackedKinds[2], 60);
  const SplitFile segments = split_file(file, 4);
  SegmentedJpeg jpeg;
  jpeg.open(segments.bytes, 200, 150, "x");
  ScanIndex index;
  FastDecoder decoder, indexed(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  const SampleTransform whole{{0, 0, 200, 150}, 0, 0, false};
  EXPECT_TRUE(expect_same_bits(pack_sample(decoder, jpeg, whole, 96), 96, "96"));
  const PackedSample small = pack_sample(decoder, jpeg, whole, 16);
  EXPECT_GT(small.packed.size(), sizeof(PackedJpeg)) << "more than its pixels";
  EXPECT_TRUE(expect_same_bits(small, 16, "16"));
  EXPECT_TRUE(expect_same_bits(pack_sample(decoder, jpeg, whole, {97, 95}), {97, 95}, "97 x 95"))
      << "pixels of a batch are not aligned";
  SampleTransform padded = whole;
  padded.fitted = {0, 12, 96, 72};
  EXPECT_TRUE(pack_sample(decoder, jpeg, padded, 96).packed.empty());
  const std::span<const std::byte> plain(file);
  EXPECT_TRUE(pack_sample(decoder, plain, whole, 96).packed.empty()) << "without an index";
  EXPECT_TRUE(pack_sample(indexed, plain, whole, 96).packed.empty()) << "without points";
  EXPECT_FALSE(pack_sample(indexed, plain, whole, 96).packed.empty()) << "reading has found them";
  const auto other = encode_as(test_picture(200, 150), {"440", JCS_YCbCr, 1, 2, true}, 60);
  EXPECT_TRUE(pack_sample(indexed, std::span<const std::byte>(other), whole, 96).packed.empty());
}

// Their points are known, and fast decoding uses them.
TEST(Unpack, RareKindsAndSmallImagesAreDecodedOnTheCpu) {
  ScanIndex index;
  FastDecoder indexed(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  for (const auto& file : {encode_as(test_picture(200, 150), {"rgb", JCS_RGB}, 60),
                           encode_as(test_picture(200, 150), {"411", JCS_YCbCr, 4, 1}, 60),
                           encode_as(test_picture(1200, 15), kPackedKinds[0], 60)}) {
    ASSERT_EQ(indexed.find_points(file, "x"), FastDecoder::Points::kFound);
    const SampleTransform part{{20, 2, 100, 13}, 0, 0, false};
    EXPECT_TRUE(pack_sample(indexed, std::span<const std::byte>(file), part, 48).packed.empty());
    EXPECT_TRUE(split_file(file, 4).bytes.empty());
  }
}

// An output row of a panorama needs more decoded rows than the scratch memory holds.
TEST(Unpack, ACropThatNeedsMoreScratchMemoryIsNotPacked) {
  FastDecoder decoder;
  Image picture;
  picture.resize(3000, 80);
  for (const bool grey : {false, true}) {
    const SplitFile segments = split_file(encode_as(picture, kPackedKinds[grey ? 3 : 0], 10), 128);
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, 3000, 80, "x");
    const PackedSample sample =
        pack_sample(decoder, jpeg, {{0, 0, 3000, 80}, 0, 0, false}, {64, 100});
    EXPECT_EQ(!sample.packed.empty(), grey);
  }
}

// A crop of more rows than the scratch memory holds is decoded in turns.
TEST(Unpack, RowsBeyondTheScratchMemoryReplaceOthers) {
  FastDecoder decoder;
  Image picture;
  picture.resize(330, 900);
  for (int i = 0; i < 330 * 900 * 3; ++i)
    picture.pixels[size_t(i)] = uint8_t(120 + 100 * std::sin(i % 990 / 50.0) * std::cos(i / 30e3));
  for (const JpegKind& kind : kPackedKinds) {
    const SplitFile segments = split_file(encode_as(picture, kind, 10), 16);
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, 330, 900, "x");
    for (const ImageSize size : {ImageSize(120, 100), ImageSize(100, 120), ImageSize(40, 330)}) {
      const SampleTransform whole{{0, 0, 330, 900}, 0, 0, true};
      const PackedSample sample = pack_sample(decoder, jpeg, whole, size);
      ASSERT_TRUE(expect_same_bits(sample, size, kind.name + crop_text(whole.crop, size)));
      UnpackPlan plan;
      ASSERT_TRUE(make_plan(header_of(sample), uint32_t(sample.packed.size()), size, plan));
      EXPECT_LT(plan.ring_bands, header_of(sample).rows) << "this tests little";
    }
  }
}

TEST(Unpack, DecodedSamplesOfABatchAreCopied) {
  const MixedBatch batch(12);
  const Unpacked found =
      testing::unpack_places(unpack_jpegs_cpu, batch.memory, batch.places, batch.size);
  EXPECT_TRUE(found.pixels == batch.expected);
  EXPECT_EQ(found.failed, std::vector<uint8_t>(batch.places.size(), 0));
}

constexpr int kUnpackMembers = 5;

struct UnpackThreads {
  int member;
  std::barrier<>& barrier;
  int first() const { return member; }
  static constexpr int step() { return kUnpackMembers; }
  void wait() const { barrier.arrive_and_wait(); }
  void increment(uint32_t& counter) const {
    std::atomic_ref(counter).fetch_add(1, std::memory_order_relaxed);
  }
};

void unpack_by_threads(const UnpackArguments& batch) {
  std::barrier<> barrier(kUnpackMembers);
  const auto state = std::make_unique<UnpackState>();
  const auto work = [&](int member) {
    const UnpackThreads team{member, barrier};
    for (int64_t i = 0; i < batch.count; ++i) {
      unpack_image(team, batch, i, batch.scratch, *state);
      team.wait();
    }
  };
  std::vector<std::thread> threads;
  for (int member = 1; member < kUnpackMembers; ++member) threads.emplace_back(work, member);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

// Under ThreadSanitizer a missing wait is a data race. The second batch has damaged samples too.
TEST(Unpack, ByATeamOfThreadsEqualsOneThread) {
  MixedBatch batch(12);
  for (const bool damaged : {false, true}) {
    if (damaged) {
      *batch.sample(1) = std::byte{0};
      batch.damage(2);
      std::fill_n(batch.sample(5) + sizeof(PackedJpeg), 8, std::byte{0xff});  // of a filter
    }
    const auto lone =
        testing::unpack_places(unpack_jpegs_cpu, batch.memory, batch.places, batch.size);
    const auto team =
        testing::unpack_places(unpack_by_threads, batch.memory, batch.places, batch.size);
    EXPECT_TRUE(team.pixels == lone.pixels);
    EXPECT_EQ(team.failed, lone.failed);
    EXPECT_EQ(std::count(lone.failed.begin(), lone.failed.end(), 1), damaged ? 3 : 0);
  }
}

TEST(Unpack, EqualsFastDecodingOnPhotographs) {
  const std::string folder = testing::shared_path("data/imagenet-400");
  if (!Env::posix().is_directory(folder)) GTEST_SKIP() << "no photographs at " << folder;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ScanIndex index;
  FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  int packed = 0, all = 0;
  for (size_t i = 0; i < files.size(); i += 4) {
    const auto file = read_file(Env::posix(), files[i]);
    const SplitFile segments = split_file(file, 8);
    if (segments.bytes.empty()) continue;
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, segments.width, segments.height, "x");
    const bool has_points = decoder.find_points(file, "x") != FastDecoder::Points::kNone;
    RandomStream random(1, 0, i, RandomUse::kAugment);
    for (int n = 0; n < 3; ++n) {
      const SampleTransform transform{
          random_resized_crop(random, segments.width, segments.height, 0.08, 1, 3.0 / 4, 4.0 / 3),
          0, 0, n == 1};
      ++all;
      packed += expect_same_bits(pack_sample(decoder, jpeg, transform, 224), 224, files[i]);
      if (has_points)
        expect_same_bits(pack_sample(decoder, std::span<const std::byte>(file), transform, 224),
                         224, files[i]);
    }
  }
  EXPECT_GT(packed, all * 3 / 4) << "of " << all;
  RecordProperty("packed", packed);
}

}  // namespace
}  // namespace saturate
