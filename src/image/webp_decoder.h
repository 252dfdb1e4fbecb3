#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "image/codec.h"
#include "saturate/data/image.h"

namespace saturate {

// WebP through libwebp; a build without it says so. open() then read(), or open() alone; `bytes`
// must live until then.
class WebpDecoder {
 public:
  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  // Pixels as stored, before orientation; alpha is dropped. Returns the orientation.
  int read(const std::string& where, Image& out);
  void close() { bytes_ = {}; }

 private:
  std::span<const std::byte> bytes_;  // the open image
  CodecHeader header_{};
};

}  // namespace saturate
