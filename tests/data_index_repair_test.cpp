// data.index: entries that are wrong, or cannot be complete.
#include <gtest/gtest.h>

#include "tests/index_testing.h"

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

// As in a forged index, whose checksums are right: all crops would have other colours.
TEST(IndexRepair, PointsThatDoNotBeginTheScanAreRefused) {
  const auto file = photo_of_quality(80);
  const ScanPoints all = all_points_of(file);
  for (const int change : {0, 1, 2}) {
    ScanPoints wrong = all;
    for (ScanPoint& point : wrong.point) {
      if (change == 0) point.bit += 8;
      if (change == 1) point.dc[1] += 5;
    }
    if (change == 2) wrong.point[9] = wrong.point[8];
    ScanIndex index;
    index.keep(scan_key(file), wrong);
    EXPECT_TRUE(points_of(index, file).point.empty()) << change;
  }
}

TEST(IndexRepair, AFileWithAScanForEachComponentHasNoPoints) {
  const auto file =
      encode_as(test_picture(400, 300), {.name = "", .across = 2, .down = 2, .own_scans = true});
  JpegDecoder decoder;
  decoder.open(file, "x");
  EXPECT_TRUE(decoder.has_planes());
  EXPECT_FALSE(decoder.has_points());
}

// As when a GPU could not decode it; nothing else is new in the index.
TEST(IndexRepair, ARejectedSampleIsRemovedFromTheFile) {
  const TempDir dir;
  testing::write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  testing::index_into(path, source);
  {
    const auto data = open_input(Env::posix(), source, testing::index_options(path));
    LoaderOptions options;
    options.decode = DecodeMode::kFast;
    AugmentOptions augment;
    augment.size = 40;
    const Loader loader(*data, options, augment);
    Sample sample;
    data->read(2, sample);
    EXPECT_EQ(loader.reject_sample(2), sample.name);
  }
  EXPECT_EQ(testing::indexed_files(path), size_t(testing::kPhotos) - 1);
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
