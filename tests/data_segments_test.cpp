// Packing JPEGs in segments, and loading them.
#include <gtest/gtest.h>

#include "data/export.h"
#include "data/inspect.h"
#include "data/sample_reader.h"
#include "saturate/data/loader.h"
#include "tests/count_allocations.h"
#include "tests/data_testing.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::env;
using testing::TempDir;
using testing::test_picture;
using testing::to_text;
using testing::write_file;

// JPEGs of several kinds, most of them wider than a segment, and files that are not split.
class Segments : public ::testing::Test {
 protected:
  Segments() {
    for (int i = 0; i < 20; ++i) {
      const testing::JpegKind kind{"", JCS_YCbCr, 1 + i % 2, 1 + i % 4 / 3, i % 5 == 0};
      write_file(dir / ("set/a/" + std::to_string(10 + i) + ".jpg"),
                 to_text(encode_as(test_picture(300 - 7 * i, 150 - 3 * i), kind)));
    }
    for (const char* name : {"cmyk.jpg", "exif_6.jpg", "rgb.png", "rgb_440.jpg"})
      write_file(dir / (std::string("set/b/") + name), to_text(testing::golden_input(name)));
    folder = open_dataset(env(), "folder:" + (dir / "set"));
  }
  PackReport pack(const Dataset& data, const std::string& out, PackOptions options = {}) {
    options.out = out;
    options.threads = 2;
    return pack_dataset(env(), data, options);
  }
  TempDir dir;
  std::unique_ptr<Dataset> folder;
};

std::vector<uint64_t> batch_hashes(const Dataset& data, DecodeMode decode, PixelType type,
                                   CropKind crop, bool train) {
  LoaderOptions options;
  options.batch = 5;
  options.threads = 2;
  options.type = type;
  options.decode = decode;
  options.train = train;
  AugmentOptions augment;
  augment.size = 40;
  augment.crop = crop;
  Loader loader(data, options, augment);
  loader.start_epoch(3);
  std::vector<uint64_t> hashes;
  const size_t image = 40 * 40 * 3 * (type == PixelType::kUint8 ? 1 : sizeof(float));
  for (Batch batch; loader.next(batch);)
    hashes.push_back(testing::hash_bytes({batch.pixels.get(), batch.count() * image}));
  EXPECT_EQ(hashes.size(), 5u) << "of 24 images";
  return hashes;
}

TEST_F(Segments, BatchesEqualThoseOfTheOriginalFiles) {
  const PackReport report = pack(*folder, "shard:" + (dir / "s.shard"));
  EXPECT_EQ(report.segmented, 20u);
  EXPECT_EQ(report.exact, 16u) << "4 are progressive";
  EXPECT_EQ(report.copied, 4u);
  const auto shard = open_dataset(env(), "shard:" + (dir / "s.shard"));
  for (const DecodeMode decode : {DecodeMode::kExact, DecodeMode::kFast})
    for (const PixelType type : {PixelType::kUint8, PixelType::kFloat32})
      for (const CropKind crop : {CropKind::kRandomResized, CropKind::kPad, CropKind::kCenter})
        for (const bool train : {true, false})
          EXPECT_EQ(batch_hashes(*shard, decode, type, crop, train),
                    batch_hashes(*folder, decode, type, crop, train))
              << int(decode) << int(type) << int(crop) << train;
}

TEST_F(Segments, PackingAgainReturnsTheOriginalFiles) {
  PackOptions options;
  options.verify = true;
  pack(*folder, "shard:" + (dir / "s.shard"), options);
  const auto shard = open_dataset(env(), "shard:" + (dir / "s.shard"));
  for (const std::string& out : {"tar:" + (dir / "t.tar"), "lmdb:" + (dir / "l")}) {
    const PackReport report = pack(*shard, out);
    EXPECT_EQ(report.joined, 20u);
    EXPECT_EQ(report.exact, 16u);  // the others are progressive
  }
  write_dataset(env(), *shard, dir / "files", 2);
  Decoder decoder;
  Sample sample;
  Image expected, image;
  for (const std::string& uri : {"shard:" + (dir / "s.shard"), "tar:" + (dir / "t.tar"),
                                 "lmdb:" + (dir / "l"), "folder:" + (dir / "files")}) {
    const auto packed = open_dataset(env(), uri);
    ASSERT_EQ(packed->size(), folder->size());
    for (size_t i = 0; i < packed->size(); ++i) {
      folder->read(i, sample);
      decode_sample(decoder, sample, expected);
      const auto original = sample.bytes;
      packed->read(i, sample);
      EXPECT_EQ(sample.encoding == SampleEncoding::kSegmented, uri[0] == 's' && i < 20);
      const bool is_progressive = i < 20 && i % 5 == 0;
      EXPECT_EQ(sample.bytes == original, i >= 20 || (uri[0] != 's' && !is_progressive)) << uri;
      decode_sample(decoder, sample, image);
      EXPECT_EQ(image.pixels, expected.pixels) << sample.name;
    }
    const DatasetReport seen = inspect_dataset(*packed, InspectDepth::kPixels, 2);
    EXPECT_EQ(seen.jpeg, 23u);
    EXPECT_EQ(seen.width.max, 300);
    EXPECT_TRUE(seen.broken.empty());
  }
  // A shard of a shard is the same shard; one without segments holds the files.
  EXPECT_EQ(pack(*shard, "shard:" + (dir / "again.shard")).copied, 24u);
  EXPECT_EQ(testing::read_text(dir / "again.shard"), testing::read_text(dir / "s.shard"));
  options = {};
  options.segment = 0;
  EXPECT_EQ(pack(*folder, "shard:" + (dir / "plain.shard"), options).copied, 24u);
  const auto plain = open_dataset(env(), "shard:" + (dir / "plain.shard"));
  Sample file;
  ASSERT_EQ(plain->size(), 24u);
  for (size_t i = 0; i < plain->size(); ++i) {
    plain->read(i, sample);
    folder->read(i, file);
    EXPECT_EQ(sample.bytes, file.bytes);
  }
}

TEST_F(Segments, FilesThatAreEncodedAgainAreNotRestored) {
  PackOptions options;
  options.quality = 80;
  const PackReport report = pack(*folder, "shard:" + (dir / "s.shard"), options);
  EXPECT_GT(report.segmented, 20u);
  EXPECT_EQ(report.exact, 0u);
}

// A broken file is not split, and its reader reports the same error as for the original.
TEST_F(Segments, BrokenFilesAreStoredUnchanged) {
  const std::string file = testing::read_text(dir / "set/a/10.jpg");
  write_file(dir / "set/a/10.jpg", file.substr(0, file.size() / 2));
  pack(*folder, "shard:" + (dir / "s.shard"));
  const auto shard = open_dataset(env(), "shard:" + (dir / "s.shard"));
  const DatasetReport seen = inspect_dataset(*shard, InspectDepth::kPixels, 2);
  ASSERT_EQ(seen.broken.size(), 1u);
  EXPECT_NE(seen.broken[0].reason.find("truncated"), std::string::npos);
}

TEST_F(Segments, ReadingAllocatesNothingAfterWarmUp) {
  if (!testing::allocation_count()) GTEST_SKIP() << "a sanitizer owns operator new";
  pack(*folder, "shard:" + (dir / "s.shard"));
  const auto shard = open_dataset(env(), "shard:" + (dir / "s.shard"));
  for (const DecodeMode decode : {DecodeMode::kExact, DecodeMode::kFast}) {
    LoaderOptions options;
    options.decode = decode;
    AugmentOptions augment;
    augment.size = 40;
    augment.crop = CropKind::kRandomResized;
    SampleReader reader(*shard, options, augment);
    std::vector<std::byte> out(40 * 40 * 3 * sizeof(float));
    const auto read_all = [&] {
      for (BatchSample sample; sample.index < 20; ++sample.index)
        reader.read(1, sample, out.data());
    };
    read_all();
    const auto before = *testing::allocation_count();
    read_all();
    EXPECT_EQ(*testing::allocation_count(), before) << int(decode);
  }
}

}  // namespace
}  // namespace saturate
