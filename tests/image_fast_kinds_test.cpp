// Fast decoding of the kinds of JPEG that few files are of, compared with exact mode.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "image/fast_decoder.h"
#include "image/scan_index.h"
#include "tests/fast_testing.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

using testing::compare;
using testing::crops;
using testing::encode_as;
using testing::exact_pixels;
using testing::fast_pixels;
using testing::golden_input;
using testing::has_inks;
using testing::JpegKind;
using testing::kLeastPsnr;
using testing::kRareKinds;
using testing::test_picture;

TEST(FastKinds, AreNearExactForEverySizeAndCrop) {
  testing::expect_near_exact(kRareKinds, {{97, 61}, {33, 130}, {17, 16}});
}

TEST(FastKinds, AreNearExactWithReducedSizeDecoding) {
  FastDecoder decoder;
  for (const JpegKind& kind : kRareKinds) {
    const auto bytes = encode_as(test_picture(700, 523), kind);
    for (const Box& crop : {Box{0, 0, 700, 523}, Box{99, 41, 333, 401}, Box{400, 223, 300, 300}}) {
      for (const int size : {9, 24, 36, 72}) {
        if (has_inks(kind) && size < 24) continue;  // too many taps, as they are not reduced
        const SampleTransform transform{crop, 0, 0, true};
        const auto result = compare(fast_pixels(decoder, bytes, transform, size),
                                    exact_pixels(bytes, transform, size));
        EXPECT_GE(result.psnr, kLeastPsnr) << kind.name << " " << crop.width << " to " << size;
      }
    }
  }
}

// Repeated samples and inks are exact; filters round otherwise than libjpeg.
TEST(FastKinds, EqualExactWithoutResizing) {
  FastDecoder decoder;
  const SampleTransform transform{{13, 5, 50, 50}, 0, 0, true};
  for (const JpegKind& kind : std::span(kRareKinds).subspan(testing::kFilteredKinds)) {
    const auto bytes = encode_as(test_picture(97, 61), kind);
    EXPECT_EQ(fast_pixels(decoder, bytes, transform, 50), exact_pixels(bytes, transform, 50))
        << kind.name;
  }
  for (const JpegKind& kind : {JpegKind{"422", JCS_YCbCr, 2, 1}, {"420", JCS_YCbCr, 2, 2}}) {
    const auto bytes = encode_as(test_picture(4, 30), kind);
    const SampleTransform narrow{{1, 7, 3, 3}, 0, 0, true};
    EXPECT_EQ(fast_pixels(decoder, bytes, narrow, 3), exact_pixels(bytes, narrow, 3)) << kind.name;
  }
  for (const char* const name : {"cmyk.jpg", "ycck.jpg", "rgb_411.jpg"}) {
    const auto bytes = golden_input(name);
    const auto info = decoder.open(bytes, name);
    ASSERT_TRUE(info) << name;
    const int size = std::min(info->width, info->height);
    const SampleTransform whole{{0, 0, size, size}, 0, 0, false};
    EXPECT_EQ(fast_pixels(decoder, bytes, whole, size), exact_pixels(bytes, whole, size)) << name;
  }
}

TEST(FastKinds, TheEncodingOfCoefficientsDoesNotMatter) {
  FastDecoder decoder;
  const Image picture = test_picture(211, 163);
  for (const JpegKind& kind : kRareKinds) {
    if (kind.progressive || kind.restart_rows > 0) continue;
    JpegKind own = kind, restarts = kind, progressive = kind, scans = kind;
    own.own_tables = progressive.progressive = scans.own_scans = true;
    restarts.restart_rows = 1;
    for (const int size : {11, 30, 97}) {
      const SampleTransform transform{{33, 17, 160, 133}, 0, 0, true};
      const auto baseline = fast_pixels(decoder, encode_as(picture, kind), transform, size);
      for (const JpegKind& other : {own, restarts, progressive, scans})
        EXPECT_EQ(fast_pixels(decoder, encode_as(picture, other), transform, size), baseline)
            << kind.name << " " << size;
    }
  }
}

// Those of three components have points, which change no pixel.
TEST(FastKinds, PointsDoNotMatter) {
  ScanIndex index;
  FastDecoder plain, indexed(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  for (const JpegKind& kind : kRareKinds) {
    if (kind.progressive || kind.restart_rows > 0) continue;
    const auto bytes = encode_as(test_picture(300, 200), kind);
    EXPECT_EQ(indexed.find_points(bytes, "x"),
              has_inks(kind) ? FastDecoder::Points::kNone : FastDecoder::Points::kFound)
        << kind.name;
    for (const Box& crop : {Box{0, 0, 300, 200}, Box{90, 70, 100, 64}, Box{201, 133, 99, 67}}) {
      const SampleTransform transform{crop, 0, 0, false};
      EXPECT_EQ(fast_pixels(indexed, bytes, transform, 32),
                fast_pixels(plain, bytes, transform, 32))
          << kind.name << " " << crop.x;
    }
  }
}

}  // namespace
}  // namespace saturate
