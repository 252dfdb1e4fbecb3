// Segmentation masks: a class number for each pixel of an image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace saturate {

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
