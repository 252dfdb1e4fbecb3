// Headers that packing reads without libjpeg: equal to what libjpeg reads, or left to it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "image/scan_header.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/random.h"
#include "tests/jpeg_encoding.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

using testing::bytes_of_text;
using testing::encode_as;
using testing::JpegKind;
using testing::kPackedKinds;
using testing::test_picture;
using testing::with_marker;

bool is_equal(const ScanHeader& a, const ScanHeader& b) {
  bool equal = a.width == b.width && a.height == b.height && a.components == b.components &&
               a.across == b.across && a.down == b.down && a.restart == b.restart &&
               a.scan.data() == b.scan.data() && a.scan.size() == b.scan.size();
  for (int c = 0; c < a.components; ++c) {
    const int dc = a.dc_table[c], ac = 2 + a.ac_table[c];
    equal = equal && dc == b.dc_table[c] && ac == 2 + b.ac_table[c] &&
            std::memcmp(a.quant[c], b.quant[c], sizeof a.quant[c]) == 0 &&
            std::memcmp(&a.codes[dc], &b.codes[dc], sizeof a.codes[dc]) == 0 &&
            std::memcmp(&a.codes[ac], &b.codes[ac], sizeof a.codes[ac]) == 0;
  }
  return equal;
}

// Whether it is read without libjpeg, which then must read the same.
bool is_read(const std::vector<std::byte>& file) {
  ScanHeader found, expected;
  JpegFrame frame;
  if (!read_jpeg_frame(file, frame) || !read_scan_header(file, frame, found)) return false;
  JpegDecoder decoder;
  try {
    decoder.open(file, "x");
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    return true;
  }
  EXPECT_TRUE(read_scan_header(decoder, expected));
  EXPECT_TRUE(is_equal(found, expected));
  return true;
}

TEST(ScanHeader, EqualsLibjpegsForEveryKind) {
  for (const JpegKind& kind : kPackedKinds) {
    for (const int quality : {1, 30, 95}) {
      const auto file = encode_as(test_picture(150, 97), kind, quality);
      EXPECT_TRUE(is_read(file)) << kind.name;
      const testing::SplitFile segments = testing::split_file(file, 2);
      SegmentedJpeg jpeg;
      jpeg.open(segments.bytes, segments.width, segments.height, "x");
      EXPECT_TRUE(is_read({jpeg.file().begin(), jpeg.file().end()})) << kind.name;
    }
  }
}

TEST(ScanHeader, OtherKindsAreLeftToLibjpeg) {
  const Image picture = test_picture(150, 97);
  EXPECT_FALSE(is_read(encode_as(picture, {"440", JCS_YCbCr, 1, 2}, 60)));
  EXPECT_FALSE(is_read(encode_as(picture, {"rgb", JCS_RGB}, 60)));
  EXPECT_FALSE(is_read(encode_as(picture, {"progressive", JCS_YCbCr, 2, 2, true}, 60)));
  EXPECT_FALSE(is_read(encode_as(test_picture(15, 97), kPackedKinds[0], 60)));
  EXPECT_FALSE(is_read({}));
}

// EXIF's and XMP's orientations; Adobe's marker of colours.
TEST(ScanHeader, MarkersThatChangeTheImageAreKnown) {
  const auto file = encode_as(test_picture(150, 97), kPackedKinds[2], 60);
  EXPECT_TRUE(is_read(with_marker(file, 0xe1, testing::exif(1))));
  EXPECT_FALSE(is_read(with_marker(file, 0xe1, testing::exif(6))));
  const std::string xmp("http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>6<", 49);
  EXPECT_FALSE(is_read(with_marker(file, 0xe1, xmp)));
  EXPECT_TRUE(is_read(with_marker(file, 0xe1, "something else")));
  EXPECT_TRUE(is_read(with_marker(file, 0xfe, "a comment")));
  EXPECT_FALSE(is_read(with_marker(file, 0xf0, "ab"))) << "reserved";
  for (const int transform : {0, 1}) {
    const std::string adobe = std::string("Adobe\0\x64\0\0\0\0", 11) + char(transform);
    const auto coloured = with_marker(file, 0xee, adobe);
    EXPECT_TRUE(is_read(coloured)) << "JFIF's marker says YCbCr";
    std::string text(reinterpret_cast<const char*>(coloured.data()), coloured.size());
    const size_t jfif = text.find("JFIF");
    if (jfif == std::string::npos) continue;
    text[jfif] = 'X';
    EXPECT_EQ(is_read(bytes_of_text(text)), transform == 1);
  }
}

TEST(ScanHeader, WideAndRepeatedTablesAreRead) {
  JpegKind wide = kPackedKinds[2];
  wide.wide_quants = true;
  const auto file = encode_as(test_picture(150, 97), wide, 1);
  JpegFrame frame;
  ScanHeader header;
  EXPECT_TRUE(is_read(file));
  EXPECT_TRUE(read_jpeg_frame(file, frame));
  EXPECT_TRUE(read_scan_header(file, frame, header));
  EXPECT_GT(header.quant[0][0], 255);
  for (const auto& [marker, body] : testing::other_tables())
    EXPECT_TRUE(is_read(with_marker(file, marker, body))) << marker;
}

TEST(ScanHeader, ChangedBytesAreReadAsLibjpegDoesOrNot) {
  RandomStream random(3, 0, 0, RandomUse::kSynthetic);
  int read = 0;
  for (int round = 0; round < 6000; ++round) {
    auto file = encode_as(test_picture(40, 32), kPackedKinds[round % 4], 60);
    JpegFrame frame;
    ASSERT_TRUE(read_jpeg_frame(file, frame));
    for (uint64_t n = 1 + random.below(2); n > 0; --n)
      file[random.below(frame.scan_at)] = std::byte(random.below(random.below(2) ? 4 : 256));
    if (read_jpeg_frame(file, frame)) read += is_read(file);
    if (HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(read, 2000);
}

}  // namespace
}  // namespace saturate
