// Fast decoding of JPEGs that EXIF turns or mirrors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "image/codec.h"
#include "image/fast_decoder.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"
#include "tests/fast_testing.h"
#include "tests/image_testing.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

using testing::compare;
using testing::encode_as;
using testing::exact_pixels;
using testing::exif;
using testing::fast_pixels;
using testing::JpegKind;
using testing::kFastKinds;
using testing::test_picture;
using testing::with_marker;

std::vector<std::byte> oriented(const std::vector<std::byte>& file, int orientation) {
  return with_marker(file, 0xe1, exif(orientation));
}

// Where `box` of the upright image, of that size, is stored.
Box stored_box(const Box& box, int orientation, int width, int height) {
  const int x = box.x, y = box.y, w = box.width, h = box.height;
  const int right = width - x - w, bottom = height - y - h;
  switch (orientation) {
    case 2:
      return {right, y, w, h};
    case 3:
      return {right, bottom, w, h};
    case 4:
      return {x, bottom, w, h};
    case 5:
      return {y, x, h, w};
    case 6:
      return {y, right, h, w};
    case 7:
      return {bottom, right, h, w};
    case 8:
      return {bottom, x, h, w};
    default:
      return box;
  }
}

// Pixels as of fast_pixels(), from the same file without orientation.
std::vector<uint8_t> turned_pixels(FastDecoder& decoder, const std::vector<std::byte>& upright,
                                   int orientation, const SampleTransform& transform,
                                   const ImageSize& size, int width, int height) {
  const bool exchanged = orientation >= 5;
  const ImageSize stored = exchanged ? ImageSize(size.width, size.height) : size;
  Image image, turned, out;
  image.resize(stored.width, stored.height);
  image.pixels =
      fast_pixels(decoder, upright,
                  {stored_box(transform.crop, orientation, width, height), 0, 0, false}, stored);
  apply_orientation(image, orientation, turned);
  apply_orientation(turned, transform.flip ? 2 : 1, out);
  return out.pixels;
}

// Calls `check` for each kind, size, orientation and crop.
template <class Check>
void for_all(const Check& check) {
  for (const JpegKind& kind : kFastKinds) {
    for (const auto& [across, down] : {std::pair{97, 61}, {64, 48}, {17, 130}}) {
      const auto upright = encode_as(test_picture(across, down), kind);
      for (int orientation = 1; orientation <= 8; ++orientation) {
        const auto file = oriented(upright, orientation);
        const int width = orientation >= 5 ? down : across,
                  height = orientation >= 5 ? across : down;
        for (const Box& crop : testing::crops(width, height)) {
          SCOPED_TRACE(::testing::Message() << kind.name << " orientation " << orientation << " of "
                                            << width << "x" << height << " crop " << crop.x << ","
                                            << crop.y << " " << crop.width << "x" << crop.height);
          check(upright, file, orientation, crop, width, height);
        }
      }
    }
  }
}

TEST(FastOrientation, EqualsTheStoredPixelsTurned) {
  FastDecoder decoder;
  for_all([&](const auto& upright, const auto& file, int orientation, const Box& crop, int width,
              int height) {
    for (const ImageSize size : {ImageSize(9, 40), ImageSize(33, 16)}) {
      for (const bool flip : {false, true}) {
        const SampleTransform transform{crop, 0, 0, flip};
        ASSERT_EQ(fast_pixels(decoder, file, transform, size),
                  turned_pixels(decoder, upright, orientation, transform, size, width, height))
            << flip;
      }
    }
  });
}

TEST(FastOrientation, IsNearExact) {
  FastDecoder decoder;
  std::vector<double> all;
  for_all([&](const auto&, const auto& file, int, const Box& crop, int, int) {
    const SampleTransform transform{crop, 0, 0, crop.y % 2 == 1};
    for (const ImageSize size : {ImageSize(32, 40), ImageSize(75, 20)}) {
      const auto result =
          compare(fast_pixels(decoder, file, transform, size), exact_pixels(file, transform, size));
      EXPECT_GE(result.psnr, testing::kLeastPsnr);
      all.push_back(result.psnr);
    }
  });
  std::sort(all.begin(), all.end());
  EXPECT_GE(all[all.size() / 2], testing::kMedianPsnr);
}

TEST(FastOrientation, EqualsExactWithoutResizing) {
  FastDecoder decoder;
  for (const JpegKind& kind : {kFastKinds[0], kFastKinds[3]}) {
    for (int orientation = 1; orientation <= 9; ++orientation) {
      const auto file = oriented(encode_as(test_picture(97, 61), kind), orientation);
      for (const bool flip : {false, true}) {
        const SampleTransform transform{{5, 13, 50, 40}, 0, 0, flip};
        EXPECT_EQ(fast_pixels(decoder, file, transform, {40, 50}),
                  exact_pixels(file, transform, {40, 50}))
            << orientation;
      }
    }
  }
}

// Reduced blocks, and more rows than are written together.
TEST(FastOrientation, LargeImagesAreTurnedLikeSmallOnes) {
  FastDecoder decoder;
  const auto upright = encode_as(test_picture(700, 523), kFastKinds[2]);
  for (int orientation = 2; orientation <= 8; ++orientation) {
    const auto file = oriented(upright, orientation);
    const auto info = decoder.open(file, "x");
    ASSERT_TRUE(info);
    EXPECT_EQ(info->width, orientation >= 5 ? 523 : 700);
    EXPECT_EQ(info->height, orientation >= 5 ? 700 : 523);
    for (const ImageSize size : {ImageSize(18), ImageSize(72, 36), ImageSize(224, 160)}) {
      const SampleTransform transform{{41, 99, 401, 333}, 0, 0, true};
      const auto pixels = fast_pixels(decoder, file, transform, size);
      EXPECT_EQ(pixels, turned_pixels(decoder, upright, orientation, transform, size, info->width,
                                      info->height));
      EXPECT_GE(compare(pixels, exact_pixels(file, transform, size)).psnr, testing::kLeastPsnr);
    }
  }
}

TEST(FastOrientation, ALetterboxIsFilledInItsPlaceAlone) {
  FastDecoder decoder;
  const auto file = encode_as(test_picture(97, 61), kFastKinds[2]);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const bool flip : {false, true}) {
      SampleTransform transform{{3, 5, 50, 40}, 0, 0, flip, {4, 7, 30, 20}};
      const auto pixels = fast_pixels(decoder, oriented(file, orientation), transform, {50, 60});
      const int left = flip ? 60 - 4 - 30 : 4;
      transform.fitted = {};
      const auto inside = fast_pixels(decoder, oriented(file, orientation), transform, {20, 30});
      std::vector<uint8_t> expected(pixels.size());
      for (int y = 0; y < 20; ++y)
        std::copy_n(inside.begin() + y * 90, 90, expected.begin() + ((y + 7) * 60 + left) * 3);
      EXPECT_EQ(pixels, expected) << orientation;
    }
  }
}

// The index finds the same points whatever the orientation is.
TEST(FastOrientation, PointsOfTheIndexAreUsed) {
  ScanIndex index;
  FastDecoder plain, indexed(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  const auto upright = encode_as(test_picture(331, 203), kFastKinds[2]);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const auto file = oriented(upright, orientation);
    const SampleTransform transform{{100, 90, 80, 70}, 0, 0, true};
    const auto expected = fast_pixels(plain, file, transform, {64, 96});
    EXPECT_EQ(fast_pixels(indexed, file, transform, {64, 96}), expected) << "finds some";
    ASSERT_EQ(indexed.find_points(file, "x"), FastDecoder::Points::kFound);
    EXPECT_EQ(fast_pixels(indexed, file, transform, {64, 96}), expected) << "uses them";
    EXPECT_EQ(indexed.find_points(file, "x"), FastDecoder::Points::kKnown) << "they were right";
  }
}

TEST(FastOrientation, SegmentsAreUpright) {
  const auto file = encode_as(test_picture(200, 150), kFastKinds[2]);
  std::vector<std::byte> out;
  int width, height;
  EXPECT_FALSE(JpegSegmenter().cut(oriented(file, 6), 4, out, width, height));
  auto segments = testing::split_file(oriented(file, 1), 4);
  const auto body = testing::bytes_of_text(exif(1));
  const auto at = std::ranges::search(segments.bytes, body).begin();
  ASSERT_NE(at, segments.bytes.end());
  for (const int orientation : {1, 6}) {
    at[24] = std::byte(orientation);
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, 200, 150, "x");
    FastDecoder decoder;
    EXPECT_EQ(decoder.open(jpeg, "x").has_value(), orientation == 1);
    EXPECT_EQ(decoder.open_to_pack(jpeg).has_value(), orientation == 1);
  }
}

TEST(FastOrientation, ATruncatedFileFailsLikeInExactMode) {
  FastDecoder decoder;
  for (const JpegKind& kind : {kFastKinds[2], kFastKinds[5]}) {
    const auto whole = oriented(encode_as(test_picture(97, 61), kind), 8);
    for (size_t size = 3; size < whole.size(); size += 1 + size / 61) {
      const auto bytes = std::span(whole).first(size);
      Image image;
      const Error expected = testing::error_of([&] { Decoder().decode(bytes, "x", image); });
      for (const Box& crop : {Box{0, 0, 61, 97}, Box{57, 0, 4, 20}}) {
        const Error ours = testing::error_of([&] {
          std::vector<std::byte> out(9 * 9 * 3);
          const bool read =
              decoder.open(bytes, "x") && decoder.read("x", {crop, 0, 0, false}, 9, out.data());
          if (!read) Decoder().decode(bytes, "x", image);
        });
        EXPECT_EQ(ours.reason(), expected.reason()) << kind.name << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace saturate
