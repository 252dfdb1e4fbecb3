// data.index: entries that are wrong, or cannot be complete.
#include <gtest/gtest.h>

#include "data/source_index.h"
#include "image/fast_decoder.h"
#include "tests/data_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::TempDir;
using testing::test_picture;
using Points = FastDecoder::Points;

std::vector<std::byte> photo_of_quality(int quality) {
  return encode_as(test_picture(400, 300), {"", JCS_YCbCr, 2, 2}, quality);
}

ScanPoints points_of(const ScanIndex& index, std::span<const std::byte> file) {
  ScanPoints points;
  index.find(scan_key(file), points);
  return points;
}

ScanPoints all_points_of(std::span<const std::byte> file) {
  ScanIndex index;
  FastDecoder finder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  EXPECT_EQ(finder.find_points(file, "x"), Points::kFound);
  return points_of(index, file);
}

void decode_rows(FastDecoder& decoder, std::span<const std::byte> file, int first, int count) {
  SampleTransform transform;
  transform.crop = {0, first, 400, count};
  std::vector<std::byte> pixels(64 * 64 * 3);
  ASSERT_TRUE(decoder.open(file, "x"));
  ASSERT_TRUE(decoder.read("x", transform, 64, pixels.data()));
}

TEST(IndexRepair, WrongPointsOfAnUnfinishedFileAreFoundAgain) {
  const auto file = photo_of_quality(80);
  const ScanPoints all = all_points_of(file);
  ScanPoints wrong = all;
  wrong.point.resize(size_t(wrong.across) * 4 + 1);
  wrong.point.back().bit += 1;
  ScanIndex index;
  index.keep(scan_key(file), wrong);
  FastDecoder finder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  EXPECT_EQ(finder.find_points(file, "x"), Points::kFound);
  EXPECT_EQ(points_of(index, file).point, all.point);
}

// Its last row has no points, since the row's end cannot be checked.
TEST(IndexRepair, AFileWithOtherBytesBeforeItsEndIsFoundOnce) {
  auto file = photo_of_quality(80);
  file.insert(file.end() - 2, 3, std::byte{0x55});
  ScanIndex index;
  FastDecoder finder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  EXPECT_EQ(finder.find_points(file, "x"), Points::kFound);
  EXPECT_EQ(points_of(index, file).known_rows(), points_of(index, file).rows - 1);
  EXPECT_EQ(finder.find_points(file, "x"), Points::kKnown);
}

// The wrong entry has more points than were found again.
TEST(IndexRepair, ACorrectedEntryReplacesALongerWrongOne) {
  const auto file = photo_of_quality(80);
  const ScanPoints all = all_points_of(file), other = all_points_of(photo_of_quality(81));
  const TempDir dir;
  {
    SourceIndex wrong(Env::posix(), dir / "x.points", SourceIndex::Kind::kGiven);
    wrong.points()->keep(scan_key(file), other);
  }
  {
    SourceIndex index(Env::posix(), dir / "x.points", SourceIndex::Kind::kGiven);
    FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), index.points());
    for (int i = 0; i < 2; ++i) decode_rows(decoder, file, 0, 60);
  }
  SourceIndex again(Env::posix(), dir / "x.points", SourceIndex::Kind::kGiven);
  const ScanPoints found = points_of(*again.points(), file);
  ASSERT_FALSE(found.point.empty());
  ASSERT_LT(found.point.size(), all.point.size());
  EXPECT_TRUE(std::equal(found.point.begin(), found.point.end(), all.point.begin()));
}

}  // namespace
}  // namespace saturate
