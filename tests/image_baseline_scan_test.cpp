// The coefficients that BaselineScan reads are those that libjpeg reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "image/baseline_scan.h"
#include "image/scan_index.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"
#include "tests/scan_testing.h"

namespace saturate {
namespace {

using testing::coefficients_by_libjpeg;
using testing::coefficients_by_scan;
using testing::encode_as;
using testing::JpegKind;
using testing::ReadMcus;
using testing::test_picture;

const JpegKind kScanKinds[] = {
    {"444"},
    {"422", JCS_YCbCr, 2, 1},
    {"420", JCS_YCbCr, 2, 2},
    {"440", JCS_YCbCr, 1, 2},
    {"411", JCS_YCbCr, 4, 1},
    {"grey", JCS_GRAYSCALE},
    {"grey_2x2", JCS_GRAYSCALE, 2, 2},
    {"restarts_420", JCS_YCbCr, 2, 2, false, 1},
    {"restarts_444", JCS_YCbCr, 1, 1, false, 2},
    {.name = "own_tables", .across = 2, .down = 2, .own_tables = true},
    {.name = "444, larger MCUs", .across = 2, .chroma_across = 2},
    {.name = "422, larger MCUs", .across = 4, .chroma_across = 2},
    {.name = "wide_quants", .across = 2, .down = 2, .wide_quants = true},
    {"two components", JCS_UNKNOWN},
    {"cmyk", JCS_CMYK},
    {.name = "ycck_420", .space = JCS_YCCK, .across = 2, .down = 2, .last_as_first = true},
    {"410", JCS_YCbCr, 4, 2},
    {.name = "finer chroma", .chroma_across = 2},
};

Image noisy(int width, int height, uint32_t most) {
  Image image = test_picture(width, height);
  RandomStream random(5, 0, 0, RandomUse::kSynthetic);
  for (uint8_t& value : image.pixels) value = uint8_t(value + random.below(most));
  return image;
}

TEST(BaselineScan, ReadsTheCoefficientsThatLibjpegReads) {
  for (const JpegKind& kind : kScanKinds)
    for (const int quality : {2, 30, 75, 95, 100})
      for (const Image& picture :
           {test_picture(211, 163), noisy(97, 61, 200), noisy(640, 40, 30)}) {
        const auto file = encode_as(picture, kind, quality);
        const auto expected = coefficients_by_libjpeg(file);
        ASSERT_TRUE(expected) << kind.name;
        EXPECT_EQ(coefficients_by_scan(file), expected) << kind.name << " " << quality;
        ScanPoints points;
        for (int pass = 0; pass < 2; ++pass)
          EXPECT_EQ(coefficients_by_scan(file, {.points = &points}), expected)
              << kind.name << " " << quality << " pass " << pass;
      }
}

// Why a file that libjpeg reads is left to it; empty if it is not baseline.
std::string baseline_reason(const jpeg_decompress_struct& info) {
  if (info.progressive_mode || info.arith_code || info.data_precision != 8) return "";
  return info.comps_in_scan < info.num_components ? "several scans" : "irregular data or tables";
}

// SATURATE_JPEGS names a folder of other projects' JPEGs, such as libjpeg-turbo's seed corpora.
TEST(BaselineScan, ReadsTheFilesOfAFolderAsLibjpegDoesOrNotAtAll) {
  const char* const folder = std::getenv("SATURATE_JPEGS");
  if (!folder) GTEST_SKIP() << "SATURATE_JPEGS names no folder";
  int same = 0, left_to_libjpeg = 0, not_by_libjpeg = 0;
  std::map<std::string, int> baseline_left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    SCOPED_TRACE(entry.path().string());
    const auto file = read_file(Env::posix(), entry.path());
    constexpr size_t kMostPixels = 50'000'000;  // some broken files claim to be huge
    const testing::TestDecompressor header(file);
    if (header.ok && size_t(header.info.image_width) * header.info.image_height > kMostPixels)
      continue;
    const auto expected = coefficients_by_libjpeg(file), found = coefficients_by_scan(file);
    // With restarts, what comes after the last MCU is for JpegDecoder::check_end().
    const bool needs_no_end = header.ok && BaselineScan::has_restarts(header.info);
    EXPECT_TRUE(!found || found == expected || (!expected && needs_no_end));
    ++(!expected ? not_by_libjpeg : found ? same : left_to_libjpeg);
    if (expected && !found) ++baseline_left[baseline_reason(header.info)];
  }
  std::cout << same << " files read alike, " << left_to_libjpeg << " left to libjpeg, "
            << not_by_libjpeg << " that libjpeg does not read without a warning\n";
  baseline_left.erase("");
  for (const auto& [reason, count] : baseline_left)
    std::cout << count << " of those left to libjpeg are baseline: " << reason << "\n";
  EXPECT_GT(same, 0);
}

// The part of `whole` that ReadMcus selects.
testing::Coefficients selected(const testing::Coefficients& whole, const ReadMcus& read, int across,
                               int down) {
  testing::Coefficients part = whole;
  for (size_t c = 0; c < part.size(); ++c) {
    const int h = c == 0 ? across : 1, v = c == 0 ? down : 1;
    for (size_t y = 0; y < part[c].size(); ++y)
      for (size_t x = 0; x < part[c][y].size(); ++x)
        if (int(y) / v < read.first_row || int(y) / v >= read.end_row ||
            int(x) / h < read.columns.first || int(x) / h >= read.columns.end)
          part[c][y][x] = {};
  }
  return part;
}

// A part of an image of 700 x 300 pixels.
ReadMcus random_part(const JpegKind& kind, RandomStream& random) {
  const int mcus = (700 + 8 * kind.across - 1) / (8 * kind.across);
  const int rows = (300 + 8 * kind.down - 1) / (8 * kind.down);
  ReadMcus read;
  read.columns.first = int(random.below(uint32_t(mcus)));
  read.columns.end =
      read.columns.first + 1 + int(random.below(uint32_t(mcus - read.columns.first)));
  read.first_row = int(random.below(uint32_t(rows)));
  read.end_row = read.first_row + 1 + int(random.below(uint32_t(rows - read.first_row)));
  return read;
}

std::string text_of(const JpegKind& kind, const ReadMcus& read) {
  std::ostringstream text;
  text << kind.name << " columns " << read.columns.first << " to " << read.columns.end << " rows "
       << read.first_row << " to " << read.end_row;
  return text.str();
}

// Crops that find points, extend them, and begin and end inside and outside the known rows.
TEST(BaselineScan, ReadsAnyPartWithAnyPointsKnown) {
  JpegKind long_interval = kScanKinds[2];
  long_interval.restart_mcus = 2'000;  // longer than the image
  for (const JpegKind& kind : {kScanKinds[0], kScanKinds[2], kScanKinds[9], long_interval}) {
    const auto file = encode_as(noisy(700, 300, 40), kind, 90);
    const auto whole = coefficients_by_libjpeg(file);
    ASSERT_TRUE(whole);
    RandomStream random(9, 0, 0, RandomUse::kSynthetic);
    for (int trial = 0; trial < 20; ++trial) {
      ScanPoints points;
      for (int epoch = 0; epoch < 4; ++epoch) {
        ReadMcus read = random_part(kind, random);
        read.points = &points;
        ASSERT_EQ(coefficients_by_scan(file, read), selected(*whole, read, kind.across, kind.down))
            << text_of(kind, read) << " epoch " << epoch;
        EXPECT_GE(points.known_rows(), read.end_row);
      }
    }
  }
}

// Restarts in each MCU, at the ends of rows, every few rows, and at none of these.
TEST(BaselineScan, ReadsAnyPartBetweenAnyRestarts) {
  for (JpegKind kind : {kScanKinds[0], kScanKinds[2], kScanKinds[5]}) {
    for (const unsigned every : {1u, 2u, 7u, 16u, 44u, 50u, 88u, 89u, 400u, 5000u}) {
      kind.restart_mcus = every;
      const auto file = encode_as(noisy(700, 300, 40), kind, 90);
      const auto whole = coefficients_by_libjpeg(file);
      ASSERT_TRUE(whole);
      RandomStream random(9, every, 0, RandomUse::kSynthetic);
      for (int trial = 0; trial < 30; ++trial) {
        const ReadMcus read = random_part(kind, random);
        ASSERT_EQ(coefficients_by_scan(file, read), selected(*whole, read, kind.across, kind.down))
            << text_of(kind, read) << " restarts " << every;
      }
    }
  }
}

// Only what a part needs is read: damage elsewhere is not noticed, that of its own markers is.
TEST(BaselineScan, ReadsOnlyTheRestartsThatAPartNeeds) {
  JpegKind kind = kScanKinds[0];
  kind.restart_mcus = 11;  // 8 in a row
  const auto file = encode_as(noisy(700, 100, 40), kind, 90);
  const auto whole = coefficients_by_libjpeg(file);
  std::vector<size_t> markers;
  for (size_t i = 0; i + 1 < file.size(); ++i)
    if (file[i] == std::byte{0xff} && (file[i + 1] & std::byte{0xf8}) == std::byte{0xd0})
      markers.push_back(i);
  ASSERT_EQ(markers.size(), 13u * 8 - 1);
  const ReadMcus read{.columns = {25, 60}, .first_row = 5, .end_row = 7};  // from restart 42 to 54
  const auto part = selected(*whole, read, 1, 1);
  ASSERT_EQ(coefficients_by_scan(file, read), part);
  for (size_t i = 0; i < markers.size(); ++i) {
    auto damaged = file;
    std::fill_n(damaged.begin() + ptrdiff_t(markers[i]) + 2, 4, std::byte{0x55});
    const auto found = coefficients_by_scan(damaged, read);
    const size_t in_row = (i + 1) % 8, row = (i + 1) / 8;  // of the interval after the marker
    const bool is_needed = (row == 5 || row == 6) && in_row >= 2 && in_row <= 5;
    EXPECT_EQ(found == part, !is_needed) << i;
    damaged = file;
    damaged[markers[i] + 1] ^= std::byte{1};  // another number
    EXPECT_EQ(coefficients_by_scan(damaged, read).has_value(), i >= 6 * 8 + 5) << i;
  }
}

TEST(BaselineScan, NoticesPointsThatDoNotAgreeWithTheData) {
  const auto file = encode_as(noisy(700, 100, 40), kScanKinds[0], 90);
  const auto whole = coefficients_by_libjpeg(file);
  ScanPoints known;
  ASSERT_EQ(coefficients_by_scan(file, {.points = &known}), whole);
  ASSERT_GT(known.point.size(), 100u);
  int noticed = 0;
  for (size_t i = 0; i < known.point.size(); i += 3) {
    for (const int change : {0, 1, 2, 3}) {
      ScanPoints wrong = known;
      if (change == 0) wrong.point[i].bit += 1;
      if (change == 1) wrong.point[i].bit += uint64_t{1} << 40;
      if (change == 2) wrong.point[i].dc[i % 3] += 1;
      if (change == 3) wrong.point.erase(wrong.point.begin() + ptrdiff_t(i));
      const auto found = coefficients_by_scan(file, {.points = &wrong});
      EXPECT_TRUE(!found || found == whole) << i << " " << change;
      noticed += !found;
    }
  }
  EXPECT_GT(noticed, int(known.point.size()) / 3);
}

// Rows after the known ones begin at the last point, which no later one confirms.
TEST(BaselineScan, NoticesAWrongLastPoint) {
  for (const JpegKind& kind : {kScanKinds[0], kScanKinds[5]}) {
    const auto file = encode_as(noisy(700, 300, 40), kind, 90);
    const auto whole = coefficients_by_libjpeg(file);
    ScanPoints known;
    ASSERT_TRUE(coefficients_by_scan(file, {.end_row = 9, .points = &known}));
    ASSERT_EQ(known.known_rows(), 9);
    for (const int change : {0, 1, 2, 3}) {
      ScanPoints points = known;
      ScanPoint& last = points.point.back();
      if (change == 1) last.bit += 1;
      if (change == 2) last.bit += 8;
      if (change == 3) last.dc[0] += 1;
      const auto found = coefficients_by_scan(file, {.first_row = 9, .points = &points});
      EXPECT_EQ(found.has_value(), change == 0) << kind.name << change;
      if (change > 0) continue;
      EXPECT_EQ(coefficients_by_scan(file, {.points = &points}), whole) << kind.name;
    }
  }
}

// Also where a crop ends inside a part.
TEST(BaselineScan, NoticesWrongPointsOfACrop) {
  const auto file = encode_as(noisy(700, 100, 40), kScanKinds[0], 90);
  const auto whole = coefficients_by_libjpeg(file);
  ScanPoints known;
  ASSERT_EQ(coefficients_by_scan(file, {.points = &known}), whole);
  ASSERT_EQ(known.every, 8);
  for (const int end : {19, 24, 30}) {
    ReadMcus read{.columns = {11, end}, .first_row = 3, .end_row = 4};
    const auto part = selected(*whole, read, 1, 1);
    for (const size_t used : {size_t{1}, size_t((end + 7) / 8)}) {
      for (const bool position : {false, true}) {
        ScanPoints wrong = known;
        ScanPoint& point = wrong.point[size_t(3 * known.across) + used];
        position ? point.bit += 3 : point.dc[1] += 1;
        read.points = &wrong;
        const auto found = coefficients_by_scan(file, read);
        // The point after the crop only limits what is read.
        EXPECT_TRUE(!found || (used > 1 && end % known.every != 0 && found == part))
            << end << " " << used << " " << position;
      }
    }
    read.points = &known;
    EXPECT_EQ(coefficients_by_scan(file, read), part);
  }
}

TEST(BaselineScan, LeavesDamagedFilesToLibjpeg) {
  for (const JpegKind& kind : kScanKinds) {
    const auto intact = encode_as(test_picture(211, 163), kind, 90);
    for (size_t size = 0; size < intact.size(); size += 97) {
      const auto part = std::span(intact).first(size);
      if (kind.restart_rows > 0) continue;
      EXPECT_FALSE(coefficients_by_scan(part)) << kind.name << size;
    }
    for (size_t i = 2; i < intact.size(); i += 1 + i / 100) {
      auto bytes = intact;
      bytes[i] ^= std::byte{0x21};
      const auto expected = coefficients_by_libjpeg(bytes);
      const auto found = coefficients_by_scan(bytes);
      if (!found || !expected) continue;
      EXPECT_EQ(found, expected) << kind.name << " byte " << i;
    }
  }
}

// libjpeg reads these numbers from headers without a check.
TEST(BaselineScan, LeavesTablesThatDoNotExistToLibjpeg) {
  const auto intact = encode_as(test_picture(64, 64), kScanKinds[0]);
  const auto after = [&](int marker) {
    for (size_t i = 0; i + 1 < intact.size(); ++i)
      if (intact[i] == std::byte{0xff} && intact[i + 1] == std::byte(marker)) return i + 4;
    return size_t{0};
  };
  const size_t frame = after(0xc0), scan = after(0xda);
  ASSERT_TRUE(frame != 0 && scan != 0);
  ASSERT_TRUE(coefficients_by_scan(intact));
  for (const int number : {2, 4, 15, 99, 255}) {
    for (const size_t place : {frame + 8, frame + 11, frame + 14, scan + 2, scan + 4, scan + 6}) {
      auto file = intact;
      file[place] = std::byte(number);
      EXPECT_FALSE(coefficients_by_scan(file)) << number << " at " << place;
    }
  }
}

TEST(BaselineScan, ReadsTheCoefficientsOfPhotographs) {
  const std::string folder = testing::shared_path("data/imagenet-400");
  if (!Env::posix().is_directory(folder)) GTEST_SKIP() << "no photographs at ../shared/data";
  int own = 0, files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto file = read_file(Env::posix(), entry.path());
    ScanPoints points;
    const auto found = coefficients_by_scan(file, {.points = &points});
    ++files;
    if (!found) continue;
    ++own;
    ASSERT_EQ(found, coefficients_by_libjpeg(file)) << entry.path();
    ASSERT_EQ(coefficients_by_scan(file, {.points = &points}), found) << entry.path();
  }
  EXPECT_GE(own, files * 95 / 100);
}

TEST(ScanIndex, KeepsPointsByTheContentsOfAFile) {
  auto file = encode_as(noisy(700, 300, 40), kScanKinds[2], 90);
  ScanPoints points, found;
  ASSERT_TRUE(coefficients_by_scan(file, {.end_row = 9, .points = &points}));
  const ScanPoints few = points;
  ASSERT_TRUE(coefficients_by_scan(file, {.points = &points}));
  ScanIndex index;
  const ScanKey key = scan_key(file);
  index.find(key, found);
  EXPECT_TRUE(found.point.empty());
  index.keep(key, points);
  index.keep(key, few);  // does not replace more points
  index.find(key, found);
  EXPECT_EQ(found.point, points.point);
  EXPECT_EQ(found.across, points.across);
  EXPECT_LT(index.bytes(), file.size() / 20);

  for (const size_t at : {size_t{700}, file.size() / 2, file.size() - 3}) {
    auto other = file;
    other[at] ^= std::byte{1};
    index.find(scan_key(other), found);
    EXPECT_TRUE(found.point.empty()) << at;
  }
  index.remove(key);
  index.find(key, found);
  EXPECT_TRUE(found.point.empty());
  EXPECT_EQ(index.bytes(), 0u);
}

TEST(ScanIndex, KeepsNothingMoreBeyondItsLimit) {
  ScanPoints points{4, 10, 2, std::vector<ScanPoint>(20)};
  ScanIndex index(500);
  for (uint64_t i = 0; i < 1000; ++i) index.keep({i, 1}, points);
  EXPECT_GT(index.bytes(), 0u);
  EXPECT_LT(index.bytes(), 1000u);
}

}  // namespace
}  // namespace saturate
