// JPEGs in segments: splitting changes no pixel, a part is decoded as in the whole image, and
// forged files are refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "image/fast_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"
#include "tests/format_testing.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::golden_input;
using testing::JpegKind;
using testing::test_picture;

const std::vector<JpegKind> kKinds = testing::usual_kinds_and({
    {"restarts_422", JCS_YCbCr, 2, 1, false, 1},
    {"own_tables_420", JCS_YCbCr, 2, 2, false, 0, false, true},
});

struct Cut {
  std::vector<std::byte> bytes;
  int width = 0, height = 0;
};

Cut cut(std::span<const std::byte> file, int mcus) {
  Cut result;
  EXPECT_TRUE(JpegSegmenter().cut(file, mcus, result.bytes, result.width, result.height));
  return result;
}

Image decoded(std::span<const std::byte> file) {
  Image image;
  Decoder().decode(file, "x", image);
  return image;
}

// The pixels of `box`.
std::vector<uint8_t> pixels(const Image& image, const Box& box) {
  std::vector<uint8_t> out(size_t(box.width) * size_t(box.height) * 3);
  crop_padded(image, box, PadMode::kZero, out.data());
  return out;
}

// `part`, decoded without the rest.
std::vector<uint8_t> pixels_alone(Decoder& decoder, const Cut& cut, const Box& part) {
  Image image;
  const Box held = decoder.decode_segmented(cut.bytes, cut.width, cut.height, part, "x", image);
  EXPECT_EQ(image.width, held.width);
  EXPECT_EQ(image.height, held.height);
  return pixels(image, {part.x - held.x, part.y - held.y, part.width, part.height});
}

// At every border and corner, inside, of one pixel, of everything, and at the segments' borders.
std::vector<Box> parts(int width, int height) {
  const int w = width / 2, h = height / 2;
  std::vector<Box> boxes = {{0, 0, width, height}, {0, h, width, 1}, {w, 0, 1, height}};
  for (const int x : {0, w / 2 + 1, width - w})
    for (const int y : {0, h / 2 + 1, height - h}) boxes.push_back({x, y, w, h});
  for (const int x : {0, 15, 16, 31, 32, 63, 64, 127, 128, width - 2, width - 1})
    for (const int y : {0, 7, 8, 15, 16, height - 1})
      if (x < width && y < height) boxes.push_back({x, y, 1, 1});
  return boxes;
}

// Even and odd widths, multiples of an MCU and of a segment or not: the ends of doubled chroma.
constexpr std::pair<int, int> kSizes[] = {{131, 97}, {134, 60}, {144, 48}, {256, 33}, {200, 16}};

TEST(SegmentedJpeg, EveryPartEqualsThatOfTheWholeImage) {
  Decoder decoder;
  for (const JpegKind& kind : kKinds) {
    for (const auto& [width, height] : kSizes) {
      const auto file = encode_as(test_picture(width, height), kind);
      const Image whole = decoded(file);
      for (const int mcus : {1, 2, 4, 8}) {
        const Cut segments = cut(file, mcus);
        ASSERT_EQ(segments.width, width);
        ASSERT_EQ(segments.height, height);
        for (const Box& part : parts(width, height))
          ASSERT_EQ(pixels_alone(decoder, segments, part), pixels(whole, part))
              << kind.name << " " << width << "x" << height << " of " << mcus << ", part " << part.x
              << "," << part.y << " " << part.width << "x" << part.height;
      }
    }
  }
}

TEST(SegmentedJpeg, FastDecodingEqualsThatOfTheOriginal) {
  FastDecoder decoder;
  for (const JpegKind& kind : kKinds) {
    for (const auto& [width, height] : kSizes) {
      const auto file = encode_as(test_picture(width, height), kind);
      for (const int mcus : {2, 8}) {
        const Cut segments = cut(file, mcus);
        SegmentedJpeg jpeg;
        jpeg.open(segments.bytes, width, height, "x");
        for (const Box& part : parts(width, height)) {
          const SampleTransform transform{part, 0, 0, part.x % 2 == 1};
          constexpr int kSize = 32;
          std::vector<std::byte> expected(size_t{kSize} * kSize * 3), out(expected.size());
          ASSERT_TRUE(decoder.open(file, "x"));
          ASSERT_TRUE(decoder.read("x", transform, kSize, expected.data()));
          ASSERT_TRUE(decoder.open(jpeg, "x"));
          ASSERT_TRUE(decoder.read("x", transform, kSize, out.data()));
          ASSERT_EQ(out, expected) << kind.name << " " << width << "x" << height << " of " << mcus;
        }
      }
    }
  }
}

// The first `head` bytes of a sample, those that the rows need, and the markers of the others.
Cut rows_alone(const Cut& cut, size_t head, ImageRows rows) {
  Cut part{std::vector<std::byte>(cut.bytes.size()), cut.width, cut.height};
  const std::span all(cut.bytes);
  const ByteRange rest = bytes_of_rows(all.first(head), all.size(), cut.height, rows);
  std::ranges::copy(all.first(head), part.bytes.begin());
  std::ranges::copy(all.subspan(rest.offset, rest.length),
                    part.bytes.begin() + ptrdiff_t(rest.offset));
  if (head + rest.length < all.size()) put_markers(part.bytes, cut.height, rows);
  return part;
}

TEST(SegmentedJpeg, RowsDecodeWithoutTheBytesOfTheOthers) {
  Decoder decoder;
  FastDecoder fast;
  SegmentedJpeg jpeg;
  constexpr int kSize = 32;
  std::vector<std::byte> expected(size_t{kSize} * kSize * 3), out(expected.size());
  for (const JpegKind& kind : kKinds) {
    for (const auto& [width, height] : kSizes) {
      const auto file = encode_as(test_picture(width, height), kind);
      const Image whole = decoded(file);
      const Cut segments = cut(file, 4);
      jpeg.open(segments.bytes, width, height, "x");
      const size_t table = segments.bytes.size() - jpeg.file().size();
      const uint64_t usual = segment_head_bytes(width, height, segments.bytes.size());
      for (const size_t head : {table, size_t(usual)}) {
        for (const Box& part : parts(width, height)) {
          const Cut rows = rows_alone(segments, head, {part.y, part.y + part.height});
          ASSERT_EQ(pixels_alone(decoder, rows, part), pixels(whole, part)) << kind.name;
          ASSERT_TRUE(fast.open(file, "x"));
          ASSERT_TRUE(fast.read("x", {part}, kSize, expected.data()));
          jpeg.open(rows.bytes, width, height, "x");
          ASSERT_TRUE(fast.open(jpeg, "x"));
          ASSERT_TRUE(fast.read("x", {part}, kSize, out.data()));
          ASSERT_EQ(out, expected) << kind.name << " " << width << "x" << height;
        }
      }
    }
  }
}

TEST(SegmentedJpeg, AHeadThatContradictsItselfTakesAllBytes) {
  const Cut good = cut(encode_as(test_picture(256, 64), kKinds[0]), 4);
  const std::span<const std::byte> all(good.bytes);
  const auto taken = [&](std::span<const std::byte> head, uint64_t size, int height) {
    return bytes_of_rows(head, size, height, {0, 8}).length;
  };
  EXPECT_LT(taken(all.first(1000), all.size(), 64), all.size() / 2);
  EXPECT_EQ(taken(all.first(0), all.size(), 64), all.size());
  EXPECT_EQ(taken(all.first(100), all.size(), 64), all.size() - 100) << "half a table";
  EXPECT_EQ(taken(all.first(1000), all.size() - 1, 64), all.size() - 1001);
  EXPECT_EQ(taken(all.first(1000), all.size(), 80), all.size() - 1000);
}

// Entropy-coded bytes that the crop does not need are not read: they may be anything.
TEST(SegmentedJpeg, OnlyTheSegmentsOfThePartAreDecoded) {
  const auto file = encode_as(test_picture(256, 64), {"420", JCS_YCbCr, 2, 2});
  Cut segments = cut(file, 4);
  const Box part{66, 18, 40, 10};  // of the second of four, in the second row of four
  SegmentedJpeg jpeg;
  jpeg.open(segments.bytes, 256, 64, "x");
  ASSERT_EQ(jpeg.segments_across(), 4);
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 4; ++column) {
      if (row == 1 && column == 1) continue;
      const auto data = jpeg.segment(row, column);
      std::fill_n(const_cast<uint8_t*>(data.data()), data.size(), uint8_t{0x55});
    }
  }
  Decoder decoder;
  EXPECT_EQ(pixels_alone(decoder, segments, part), pixels(decoded(file), part));
  FastDecoder fast;
  std::vector<std::byte> expected(16 * 16 * 3), out(expected.size());
  ASSERT_TRUE(fast.open(file, "x"));
  ASSERT_TRUE(fast.read("x", {part}, 16, expected.data()));
  ASSERT_TRUE(fast.open(jpeg, "x"));
  ASSERT_TRUE(fast.read("x", {part}, 16, out.data()));
  EXPECT_EQ(out, expected);
}

TEST(SegmentedJpeg, ReadsTheOneWrittenByPython) {
  const Cut segments{read_file(Env::posix(), testing::format_golden("segmented.bin")), 150, 42};
  const std::string expected = testing::gunzip(testing::format_golden("segmented.rgb.gz"));
  Decoder decoder;
  const auto whole = pixels_alone(decoder, segments, {0, 0, 150, 42});
  EXPECT_EQ(testing::to_text(std::as_bytes(std::span(whole))), expected);
}

TEST(SegmentedJpeg, JoiningReturnsAPlainFileWithItsMarkers) {
  auto file = encode_as(test_picture(150, 70), {"420", JCS_YCbCr, 2, 2});
  const std::string comment = std::string("\xff\xfe\0\x07", 4) + "hello";
  const auto bytes = std::as_bytes(std::span(comment));
  file.insert(file.begin() + 2, bytes.begin(), bytes.end());
  const Cut segments = cut(file, 4);
  std::vector<std::byte> plain;
  JpegSegmenter().join(segments.bytes, 150, 70, "x", plain);
  EXPECT_NE(testing::to_text(plain).find("hello"), std::string::npos);
  JpegFrame frame;
  ASSERT_TRUE(read_jpeg_frame(plain, frame));
  EXPECT_EQ(frame.width, 150);
  EXPECT_EQ(frame.restart, 0);
  EXPECT_EQ(decoded(plain).pixels, decoded(file).pixels);
  EXPECT_LE(plain.size(), file.size());
}

TEST(SegmentedJpeg, OtherKindsAreNotSplit) {
  JpegSegmenter segmenter;
  std::vector<std::byte> out;
  int width, height;
  for (const char* name :
       {"cmyk.jpg", "ycck.jpg", "rgb_440.jpg", "rgb_411.jpg", "stored_as_rgb.jpg", "exif_6.jpg",
        "rgb.png", "thin.jpg", "one_pixel.jpg"})
    EXPECT_FALSE(segmenter.cut(golden_input(name), 1, out, width, height)) << name;
  const auto file = encode_as(test_picture(100, 60), {"444"});
  EXPECT_FALSE(segmenter.cut(file, 13, out, width, height)) << "one segment gains nothing";
  EXPECT_FALSE(segmenter.cut({}, 8, out, width, height));
  for (size_t size = 0; size < file.size(); size += 97)
    EXPECT_FALSE(segmenter.cut(std::span(file).first(size), 4, out, width, height)) << size;
  EXPECT_TRUE(segmenter.cut(file, 4, out, width, height))
      << "the segmenter works after refused files";
}

// Without its last scan libjpeg estimates coefficients, which a baseline file would lack.
TEST(SegmentedJpeg, AProgressiveFileWithoutItsLastScanIsNotSplit) {
  auto file = encode_as(test_picture(100, 60), {"progressive_420", JCS_YCbCr, 2, 2, true});
  std::vector<std::byte> out;
  int width, height;
  ASSERT_TRUE(JpegSegmenter().cut(file, 2, out, width, height));
  const std::byte scan[] = {std::byte(0xff), std::byte(0xda)};
  file.erase(std::ranges::find_end(file, scan).begin(), file.end());
  file.insert(file.end(), {std::byte(0xff), std::byte(0xd9)});
  EXPECT_FALSE(JpegSegmenter().cut(file, 2, out, width, height));
}

// A few bytes that claim 60,000 x 60,000 pixels: no memory is allocated for them.
TEST(SegmentedJpeg, ABombIsNotSplit) {
  auto file = encode_as(test_picture(100, 60), {"444"});
  JpegFrame frame;
  ASSERT_TRUE(read_jpeg_frame(file, frame));
  for (size_t i = 0; i < 4; i += 2) {
    file[frame.size_at + i] = std::byte(60'000 >> 8);
    file[frame.size_at + i + 1] = std::byte(60'000 & 0xff);
  }
  std::vector<std::byte> out;
  int width, height;
  EXPECT_FALSE(JpegSegmenter().cut(file, 8, out, width, height));
}

class ForgedSegments : public ::testing::Test {
 protected:
  void expect_refused(const Cut& forged, const std::string& part) {
    SegmentedJpeg jpeg;
    const Error error =
        testing::error_of([&] { jpeg.open(forged.bytes, forged.width, forged.height, "here"); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
    EXPECT_EQ(error.where(), "here");
  }
  template <class T>
  void expect_refused(size_t at, T value, const std::string& part) {
    Cut forged = good;
    std::memcpy(forged.bytes.data() + at, &value, sizeof value);
    expect_refused(forged, part);
  }
  Cut good = cut(encode_as(test_picture(150, 42), {"444"}), 4);  // 5 x 6 segments
};

TEST_F(ForgedSegments, ForgedTablesAreRefused) {
  expect_refused(0, uint16_t{0}, "reaches outside");
  expect_refused(2, uint16_t{0}, "reaches outside");
  expect_refused(0, uint32_t{0xffffffff}, "reaches outside");
  expect_refused(0, uint16_t{6}, "header");  // the file would begin too late
  expect_refused(4, uint32_t{0xffffffff}, "size does not match");
  expect_refused(4, uint32_t{3}, "size does not match");
  for (const size_t segment : {0, 7, 29}) {
    uint16_t length;
    std::memcpy(&length, good.bytes.data() + 8 + 2 * segment, sizeof length);
    for (const int other : {0, length - 1, length + 1, length + 2, 0xffff})
      expect_refused(8 + 2 * segment, uint16_t(other), "its marker");
  }
  // Two segments exchange a byte: the first still ends where a marker may be.
  for (const auto& [width, height] : {std::pair{160, 43}, {160, 50}, {161, 42}, {128, 42}, {0, 42}})
    expect_refused({good.bytes, width, height}, "size does not match");
}

TEST_F(ForgedSegments, TruncatedOrLongerFilesAreRefused) {
  for (size_t size = 0; size < good.bytes.size(); ++size) {
    Cut forged = good;
    forged.bytes.resize(size);
    expect_refused(forged, "JPEG in segments has");
  }
  Cut longer = good;
  longer.bytes.resize(good.bytes.size() + 1);
  expect_refused(longer, "bytes after");
}

// Any bytes give an error or pixels; sanitizers find the rest.
TEST_F(ForgedSegments, DamagedBytesNeverCrash) {
  RandomStream random(3, 0, 0, RandomUse::kSynthetic);
  Decoder decoder;
  FastDecoder fast;
  SegmentedJpeg jpeg;
  std::vector<std::byte> out(24 * 24 * 3);
  Image image;
  int opened = 0;
  for (int round = 0; round < 6000; ++round) {
    Cut forged = good;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t near = random.below(2) ? 800 : forged.bytes.size();
      forged.bytes[random.below(std::min(near, forged.bytes.size()))] =
          std::byte(random.next_u32());
    }
    const Box part{int(random.below(100)), int(random.below(30)), int(1 + random.below(50)),
                   int(1 + random.below(12))};
    try {
      jpeg.open(forged.bytes, forged.width, forged.height, "x");
      ++opened;
      if (fast.open(jpeg, "x")) fast.read("x", {part}, 24, out.data());
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData);
    }
    try {
      decoder.decode_segmented(forged.bytes, forged.width, forged.height, part, "x", image);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData);
    }
  }
  EXPECT_GT(opened, 100) << "this tests little";
  decoder.decode_segmented(good.bytes, good.width, good.height, {0, 0, 150, 42}, "x", image);
}

TEST(SegmentedJpeg, SplitPhotographsDecodeToTheSamePixels) {
  const std::string folder = testing::shared_path("data/imagenet-400");
  if (!Env::posix().is_directory(folder)) GTEST_SKIP() << "no photographs at " << folder;
  const auto photographs = open_dataset(Env::posix(), "folder:" + folder);
  Decoder decoder;
  JpegSegmenter segmenter;
  Sample sample;
  Cut segments;
  int cuts = 0;
  for (size_t i = 0; i < photographs->size(); i += 7) {
    photographs->read(i, sample);
    if (!segmenter.cut(sample.bytes, 8, segments.bytes, segments.width, segments.height)) continue;
    ++cuts;
    const Image whole = decoded(sample.bytes);
    RandomStream random(1, 0, i, RandomUse::kAugment);
    for (int n = 0; n < 3; ++n) {
      const Box part =
          random_resized_crop(random, whole.width, whole.height, 0.08, 1, 3.0 / 4, 4.0 / 3);
      ASSERT_EQ(pixels_alone(decoder, segments, part), pixels(whole, part)) << sample.name;
    }
    const Box all{0, 0, whole.width, whole.height};
    ASSERT_EQ(pixels_alone(decoder, segments, all), pixels(whole, all)) << sample.name;
  }
  EXPECT_GT(cuts, 40);
}

}  // namespace
}  // namespace saturate
