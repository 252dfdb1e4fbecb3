// SPDX-License-Identifier: BSD-3-Clause
// Pixels in memory, decoding them from JPEG and PNG, and the masks of segmentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace saturate {

struct Box;

// Rows [first, end) of an image; without rows: all of it.
struct ImageRows {
  int first = 0, end = 0;
  bool is_all() const { return first == end; }
};

// 8-bit RGB, rows top to bottom, interleaved: pixels[(y * width + x) * 3 + channel]. A value type;
// resize() keeps the capacity, so a reused Image stops allocating.
struct Image {
  int width = 0;   // pixels
  int height = 0;  // pixels
  std::vector<uint8_t> pixels;

  void resize(int new_width, int new_height) {
    width = new_width;
    height = new_height;
    pixels.resize(size_t(new_width) * size_t(new_height) * 3);
  }
  const uint8_t* row(int y) const { return pixels.data() + size_t(y) * size_t(width) * 3; }
  uint8_t* row(int y) { return pixels.data() + size_t(y) * size_t(width) * 3; }
};

enum class ImageFormat { kJpeg, kPng, kWebp, kAvif, kRaw };

struct ImageInfo {
  ImageFormat format;
  int width, height;  // after EXIF orientation
  int components;     // as stored: 1 grey, 2 grey+alpha, 3 colour, 4 CMYK or RGBA
};

// Decodes whole images exactly: pixels equal Pillow's on the same libjpeg-turbo for
// `ImageOps.exif_transpose(Image.open(f)).convert("RGB")`. Grey becomes three equal channels, CMYK
// (always assumed to be Adobe's inverted kind) and palettes become RGB, alpha is dropped without
// blending, EXIF orientation is applied (JPEG: else XMP's; PNG: from an eXIf chunk; AVIF: its
// rotation and mirroring). 16-bit PNG keeps the high byte, also for grey, where Pillow turns
// everything above 255 white.
//
// Reuses its codec state between calls. Not for concurrent use: one per thread.
class Decoder {
 public:
  // Images of more pixels fail before memory is allocated for them (decompression bombs).
  static constexpr int64_t kDefaultMaxPixels = int64_t{1} << 28;

  explicit Decoder(int64_t max_pixels = kDefaultMaxPixels);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // `where` names the image in errors, which are of kind kData: not an image, truncated, corrupt,
  // too large. Truncated and corrupt data is an error also if libjpeg only warns or only the end
  // marker is missing; warnings that do not affect pixels, as of stray bytes between segments, are
  // not. `out` is unspecified after an error.
  void decode(std::span<const std::byte> bytes, const std::string& where, Image& out);

  // The same for a segmented JPEG of `width` x `height` (SampleEncoding::kSegmented), limited to
  // what `part` needs: `out` gets the pixels of the returned box, which contains `part`; within
  // `part` they equal those of the whole image. REQUIRES: `part` is inside the image and not empty.
  Box decode_segmented(std::span<const std::byte> bytes, int width, int height, const Box& part,
                       const std::string& where, Image& out);

  // Reads the header only: ignores an eXIf chunk after a PNG's pixels.
  ImageInfo probe(std::span<const std::byte> bytes, const std::string& where);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Baseline JPEG, 4:4:4 when `full_chroma`, else 4:2:0. `quality` is libjpeg's, 1 to 100.
std::vector<std::byte> encode_jpeg(const Image& image, int quality, bool full_chroma);

// PNG of 8-bit pixels, interleaved as in Image: `channels` 1 (grey) or 3 (RGB).
std::vector<std::byte> encode_png(const uint8_t* pixels, int width, int height, int channels);

// The class number of pixels that the loss and metrics ignore: unknown, or outside the image.
constexpr uint8_t kIgnoredClass = 255;

// A mask as stored in a source.
struct StoredMask {
  std::vector<std::byte> bytes;  // a PNG of class numbers; if is_raw, uint8 [height, width]
  bool is_raw = false;
  int width = 0, height = 0;  // pixels, if is_raw
  std::string name;           // for messages
};

// One class number per pixel, rows top to bottom. Reuse avoids allocations.
struct ClassMap {
  int width = 0, height = 0;     // pixels
  std::vector<uint8_t> classes;  // [height, width]
};

// Decodes a PNG with one number of 1 to 8 bits per pixel: grey levels as stored (not stretched to
// 255), palettes by index. It must be `width` x `height`, the size of `image`: else fails with
// kData before allocating memory, naming both. Also fails with kData if it is not such a PNG.
void decode_mask_png(std::span<const std::byte> bytes, const std::string& name, int width,
                     int height, const std::string& image, ClassMap& out);

}  // namespace saturate
