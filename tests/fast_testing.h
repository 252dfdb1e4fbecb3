// Pixels of fast decoding, and those of exact mode with which they are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image/fast_decoder.h"
#include "tests/jpeg_encoding.h"

namespace saturate::testing {

// Fixed limits. The first is for photographs, the second also for test_picture(), whose one-pixel
// waves and saturated edges are the worst case.
constexpr double kMedianPsnr = 48, kLeastPsnr = 36;
constexpr double kWorstShift = 1.0;  // levels; of one channel of one image

inline const std::vector<JpegKind> kFastKinds = usual_kinds_and({
    {"restarts_420", JCS_YCbCr, 2, 2, false, 1},
    {"440", JCS_YCbCr, 1, 2},
    {"grey_2x2", JCS_GRAYSCALE, 2, 2},
    {"rgb", JCS_RGB},
});

// libjpeg filters some planes of the first four, and repeats the samples of the others.
constexpr size_t kFilteredKinds = 4;
inline const std::vector<JpegKind> kRareKinds = {
    {"rgb_420", JCS_RGB, 2, 2},
    {"rgb_422", JCS_RGB, 2, 1},
    {.name = "finer chroma", .chroma_across = 2},
    {.name = "finer red", .across = 2, .down = 2, .last_as_first = true},
    {"411", JCS_YCbCr, 4, 1},
    {"410", JCS_YCbCr, 4, 2},
    {"311", JCS_YCbCr, 3, 1},
    {"four rows", JCS_YCbCr, 1, 4},
    {"restarts_411", JCS_YCbCr, 4, 1, false, 1},
    {"progressive_411", JCS_YCbCr, 4, 1, true},
    {"cmyk", JCS_CMYK},
    {"ycck", JCS_YCCK},
    {"progressive_ycck", JCS_YCCK, 1, 1, true},
};

// Those of kFastKinds, then those of kRareKinds.
inline std::vector<JpegKind> all_fast_kinds() {
  std::vector<JpegKind> kinds = kFastKinds;
  kinds.insert(kinds.end(), kRareKinds.begin(), kRareKinds.end());
  return kinds;
}

struct Comparison {
  double psnr = 0;
  double shift[3] = {};  // mean difference of a channel
};

inline Comparison compare(const std::vector<uint8_t>& fast, const std::vector<uint8_t>& exact) {
  Comparison result;
  double squares = 0;
  for (size_t i = 0; i < fast.size(); ++i) {
    const double difference = double(fast[i]) - double(exact[i]);
    squares += difference * difference;
    result.shift[i % 3] += difference * 3 / double(fast.size());
  }
  result.psnr = squares == 0 ? 99 : 10 * std::log10(255 * 255 * double(fast.size()) / squares);
  return result;
}

inline std::vector<uint8_t> exact_pixels(std::span<const std::byte> bytes,
                                         const SampleTransform& transform, const ImageSize& size) {
  Image image;
  Decoder().decode(bytes, "x", image);
  AugmentOptions options;
  options.size = size;
  Resizer resizer;
  std::vector<uint8_t> out(size_t(size.area()) * 3);
  apply_transform(options, transform, image, resizer, out.data());
  return out;
}

inline std::vector<uint8_t> fast_pixels(FastDecoder& decoder, std::span<const std::byte> bytes,
                                        const SampleTransform& transform, const ImageSize& size) {
  std::vector<uint8_t> out(size_t(size.area()) * 3);
  EXPECT_TRUE(decoder.open(bytes, "x").has_value());
  EXPECT_TRUE(decoder.read("x", transform, size, reinterpret_cast<std::byte*>(out.data())));
  return out;
}

// At every border and corner, inside, of one pixel, of one row, of one column, of the whole image.
inline std::vector<Box> crops(int width, int height) {
  const int w = width / 2, h = height / 2;
  std::vector<Box> boxes = {{0, 0, width, height}, {0, h, width, 1}, {w, 0, 1, height}};
  for (const int x : {0, w / 2 + 1, width - w})
    for (const int y : {0, h / 2 + 1, height - h}) boxes.push_back({x, y, w, h});
  for (const int x : {0, 7, 8, 15, 16, width - 1})
    for (const int y : {0, 7, 8, 15, 16, height - 1})
      if (x < width && y < height) boxes.push_back({x, y, 1, 1});
  return boxes;
}

// Every crop of test pictures of these sizes, resized to several sizes.
inline void expect_near_exact(const std::vector<JpegKind>& kinds,
                              const std::vector<std::pair<int, int>>& sizes) {
  FastDecoder decoder;
  std::vector<double> all;
  for (const JpegKind& kind : kinds) {
    for (const auto& [width, height] : sizes) {
      const auto bytes = encode_as(test_picture(width, height), kind);
      for (const Box& crop : crops(width, height)) {
        for (const int size : {9, 32, 75}) {
          const SampleTransform transform{crop, 0, 0, crop.x % 2 == 1};
          const auto result = compare(fast_pixels(decoder, bytes, transform, size),
                                      exact_pixels(bytes, transform, size));
          EXPECT_GE(result.psnr, kLeastPsnr)
              << kind.name << " " << width << "x" << height << " crop " << crop.x << "," << crop.y
              << " " << crop.width << "x" << crop.height << " to " << size;
          all.push_back(result.psnr);
        }
      }
    }
  }
  std::ranges::sort(all);
  EXPECT_GE(all[all.size() / 2], kMedianPsnr);
}

}  // namespace saturate::testing
