// Bytes before the markers of a scan: skipped as libjpeg skips them, or left to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "image/baseline_scan.h"
#include "image/jpeg_markers.h"
#include "tests/jpeg_encoding.h"
#include "tests/scan_testing.h"

namespace saturate {
namespace {

using testing::coefficients_by_libjpeg;
using testing::coefficients_by_scan;
using testing::encode_as;
using testing::JpegKind;
using testing::test_picture;
using FileBytes = std::vector<std::byte>;

const JpegKind kMarkedKinds[] = {
    {"420", JCS_YCbCr, 2, 2},
    {.name = "restarts", .across = 2, .down = 2, .restart_mcus = 3},
};

FileBytes marked_file(const JpegKind& kind) {
  return encode_as(test_picture(211, 163), kind, 95);
}

// Where the data of the scan begin.
ptrdiff_t scan_in(const FileBytes& file) {
  size_t scan = 0;
  walk_markers(file, [&](int code, size_t, size_t end) {
    if (code == kScan) scan = end;
  });
  EXPECT_GT(scan, 0u);
  return ptrdiff_t(scan);
}

// The file with `added` before each marker after those of its header.
FileBytes with_bytes_before_markers(const FileBytes& file, const FileBytes& added) {
  FileBytes out(file.begin(), file.begin() + scan_in(file));
  for (size_t i = out.size(), end = file.size(); i < end; ++i) {
    if (file[i] == std::byte{0xff} && i + 1 < end && file[i + 1] != std::byte{0})
      out.insert(out.end(), added.begin(), added.end());
    out.push_back(file[i]);
  }
  return out;
}

TEST(ScanMarkers, FillBytesAreSkipped) {
  for (const JpegKind& kind : kMarkedKinds) {
    const FileBytes file = marked_file(kind);
    const auto whole = coefficients_by_libjpeg(file);
    ASSERT_TRUE(whole);
    for (const unsigned count : {1u, 2u, 5u}) {
      const FileBytes filled = with_bytes_before_markers(file, FileBytes(count, std::byte{0xff}));
      EXPECT_EQ(coefficients_by_libjpeg(filled), whole) << kind.name;
      ScanPoints points;
      for (int pass = 0; pass < 2; ++pass)
        EXPECT_EQ(coefficients_by_scan(filled, {.points = &points}), whole)
            << kind.name << " " << count << " pass " << pass;
    }
  }
}

// Before a stuffed zero libjpeg may read several bytes ff as one.
TEST(ScanMarkers, FillBytesInsideTheDataAreLeftToLibjpeg) {
  for (const JpegKind& kind : kMarkedKinds) {
    const FileBytes file = marked_file(kind);
    FileBytes filled = file;
    const std::byte stuffed[] = {std::byte{0xff}, std::byte{0}};
    const auto at = std::search(filled.begin() + scan_in(file), filled.end(), std::begin(stuffed),
                                std::end(stuffed));
    ASSERT_NE(at, filled.end());
    filled.insert(at, std::byte{0xff});
    EXPECT_FALSE(coefficients_by_scan(filled)) << kind.name;
  }
}

// The number of lines, which libjpeg ignores there, and a comment.
TEST(ScanMarkers, OtherMarkersAfterTheScanAreLeftToLibjpeg) {
  const FileBytes file = marked_file(kMarkedKinds[0]);
  const auto whole = coefficients_by_libjpeg(file);
  ASSERT_TRUE(whole);
  for (const FileBytes& added :
       {testing::marker(0xdc, std::string("\0\xa3", 2)), testing::marker(kComment, "text")}) {
    const FileBytes marked = with_bytes_before_markers(file, added);
    EXPECT_EQ(coefficients_by_libjpeg(marked), whole);
    EXPECT_FALSE(coefficients_by_scan(marked));
  }
}

TEST(ScanMarkers, OtherBytesBeforeARestartAreSkipped) {
  const FileBytes file = marked_file(kMarkedKinds[1]);
  const auto whole = coefficients_by_libjpeg(file);
  ASSERT_TRUE(whole);
  const FileBytes longer = with_bytes_before_markers(file, FileBytes(3, std::byte{0x55}));
  EXPECT_EQ(coefficients_by_libjpeg(longer), whole);
  EXPECT_EQ(coefficients_by_scan(longer), whole);
}

}  // namespace
}  // namespace saturate
