// Segmentation masks: a class number for each pixel of an image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace saturate {

// The class number of pixels that neither the loss nor a metric counts: unknown, or outside the
// image.
constexpr uint8_t kIgnoredClass = 255;

// A mask as a source has it.
struct StoredMask {
  std::vector<std::byte> bytes;  // a PNG of class numbers; where is_raw, uint8 [height, width]
  bool is_raw = false;
  int width = 0, height = 0;  // pixels, where is_raw
  std::string name;           // for messages
};

// One class number a pixel, rows top to bottom. Reused, it stops allocating.
struct ClassMap {
  int width = 0, height = 0;     // pixels
  std::vector<uint8_t> classes;  // [height, width]
};

// Decodes a PNG of one number a pixel, 1 to 8 bits each: grey levels are taken as they are stored
// (not stretched to 255), palettes by index. It must be `width` x `height`, which `image` has: else
// fails with kData before memory is taken for it, naming both. Fails with kData too where it is no
// such PNG.
void decode_mask_png(std::span<const std::byte> bytes, const std::string& name, int width,
                     int height, const std::string& image, ClassMap& out);

}  // namespace saturate
