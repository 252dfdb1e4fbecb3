// The tables that a JPEG is decoded with: its own, the standard ones if it has no Huffman tables,
// never those of the previous image.
#include <gtest/gtest.h>

#include "image/fast_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::JpegKind;
using testing::test_picture;
using testing::without_segments;

constexpr int kHuffmanMarker = 0xc4, kQuantMarker = 0xdb;
constexpr int kWide = 97, kHigh = 61;
// BaselineScan decodes them in fast mode.
const JpegKind kTableKinds[] = {{"444"},
                                {"422", JCS_YCbCr, 2, 1},
                                {"420", JCS_YCbCr, 2, 2},
                                {"grey", JCS_GRAYSCALE},
                                {"restarts_420", JCS_YCbCr, 2, 2, false, 1}};

std::vector<std::byte> whole_file(const JpegKind& kind) {
  return encode_as(test_picture(kWide, kHigh), kind, 85);
}

// A JPEG of another quality, with optimised Huffman tables.
std::vector<std::byte> other_file() {
  const JpegKind own{.name = "own", .across = 2, .down = 2, .own_tables = true};
  return encode_as(test_picture(70, 50), own, 30);
}

// A decoder's previous work.
enum class Before { kNothing, kDecoded, kProbed, kFailed };
constexpr Before kAnythingBefore[] = {Before::kNothing, Before::kDecoded, Before::kProbed,
                                      Before::kFailed};

void leave_tables_of(Decoder& decoder, Before before) {
  const auto other = other_file();
  const std::span cut = std::span(other).first(other.size() - 9);
  Image image;
  if (before == Before::kDecoded) decoder.decode(other, "x", image);
  if (before == Before::kProbed) decoder.probe(other, "x");
  if (before == Before::kFailed) {
    EXPECT_THROW(decoder.decode(cut, "x", image), Error);
  }
}

Image decoded_alone(std::span<const std::byte> file) {
  Image image;
  Decoder().decode(file, "x", image);
  return image;
}

std::vector<std::byte> fast_crop(FastDecoder& decoder, std::span<const std::byte> file) {
  std::vector<std::byte> out(size_t{24} * 24 * 3);
  EXPECT_TRUE(decoder.open(file, "x").has_value());
  EXPECT_TRUE(decoder.read("x", {{5, 3, 50, 40}, 0, 0, false}, 24, out.data()));
  return out;
}

// As djpeg and Pillow read a frame of a Motion-JPEG film.
TEST(JpegTables, WithoutHuffmanTablesTheStandardOnesAreUsed) {
  for (const JpegKind& kind : kTableKinds) {
    const auto whole = whole_file(kind), frame = without_segments(whole, kHuffmanMarker);
    ASSERT_LT(frame.size(), whole.size() - 100);
    const Image expected = decoded_alone(whole);
    for (const Before before : kAnythingBefore) {
      Decoder decoder;
      leave_tables_of(decoder, before);
      Image image;
      decoder.decode(frame, "x", image);
      EXPECT_EQ(image.pixels, expected.pixels) << kind.name << " after " << int(before);
    }
  }
}

TEST(JpegTables, TablesWithoutAStandardMustBeInTheFile) {
  const JpegKind progressive{.name = "progressive", .progressive = true};
  for (const auto& file : {without_segments(whole_file(kTableKinds[0]), kQuantMarker),
                           without_segments(whole_file(progressive), kHuffmanMarker)}) {
    for (const Before before : kAnythingBefore) {
      Decoder decoder;
      leave_tables_of(decoder, before);
      Image image;
      EXPECT_THROW(decoder.decode(file, "x", image), Error) << int(before);
    }
  }
}

TEST(JpegTables, OneImagesTablesAreNotUsedForTheNextInFastMode) {
  for (const JpegKind& kind : kTableKinds) {
    const auto whole = whole_file(kind);
    FastDecoder fresh, decoder;
    const auto expected = fast_crop(fresh, whole);
    fast_crop(decoder, other_file());
    EXPECT_EQ(fast_crop(decoder, without_segments(whole, kHuffmanMarker)), expected) << kind.name;
    const auto unscaled = without_segments(whole, kQuantMarker);
    std::vector<std::byte> out(size_t{24} * 24 * 3);
    EXPECT_TRUE(decoder.open(unscaled, "x"));
    // It is left to exact mode, which fails.
    EXPECT_FALSE(decoder.read("x", {{5, 3, 50, 40}, 0, 0, false}, 24, out.data())) << kind.name;
    Image image;
    EXPECT_THROW(Decoder().decode(unscaled, "x", image), Error) << kind.name;
  }
}

TEST(JpegTables, SplittingIntoSegmentsUsesTheStandardOnesToo) {
  const auto whole = whole_file(kTableKinds[2]);
  JpegSegmenter segmenter;
  std::vector<std::byte> segments;
  int width = 0, height = 0;
  ASSERT_TRUE(segmenter.cut(other_file(), 2, segments, width, height));
  ASSERT_TRUE(segmenter.cut(without_segments(whole, kHuffmanMarker), 2, segments, width, height));
  Image image;
  Decoder decoder;
  leave_tables_of(decoder, Before::kDecoded);
  decoder.decode_segmented(segments, width, height, {0, 0, kWide, kHigh}, "x", image);
  EXPECT_EQ(image.pixels, decoded_alone(whole).pixels);
}

// As docs/data.md says about fast mode: a full decode refuses damage that is below a crop; the fast
// path shows the crop as of the undamaged file.
TEST(FastDecoder, DamageBelowTheCropIsNotSeenAndChangesNothing) {
  for (const JpegKind& kind : {kTableKinds[0], kTableKinds[2], kTableKinds[3]}) {
    const auto intact = encode_as(test_picture(96, 160), kind, 85);
    auto damaged = intact;
    for (size_t i = intact.size() * 7 / 8; i < intact.size() * 7 / 8 + 16; i += 2) {
      damaged[i] = std::byte{0xff};  // sixteen ones are not a code, and 0xff00 stands for 0xff
      damaged[i + 1] = std::byte{0};
    }
    EXPECT_THROW(decoded_alone(damaged), Error) << kind.name;
    FastDecoder decoder;
    EXPECT_EQ(fast_crop(decoder, damaged), fast_crop(decoder, intact)) << kind.name;
  }
}

}  // namespace
}  // namespace saturate
