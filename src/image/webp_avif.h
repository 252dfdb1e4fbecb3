// WebP through libwebp, and AVIF through libavif; a build without one of them says so.
//
// open() then read(), or open() alone; the bytes must live until then. read() returns the EXIF
// orientation that makes the pixels upright; alpha is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "image/codec.h"
#include "saturate/data/image.h"

struct avifDecoder;

namespace saturate {

class WebpDecoder {
 public:
  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  int read(const std::string& where, Image& out);
  void close() { bytes_ = {}; }

 private:
  std::span<const std::byte> bytes_;  // the open image
  CodecHeader header_{};
};

class AvifDecoder {
 public:
  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  int read(const std::string& where, Image& out);
  void close() { decoder_.reset(); }

 private:
  struct Destroy {
    void operator()(avifDecoder* decoder) const;
  };
  std::unique_ptr<avifDecoder, Destroy> decoder_;
  CodecHeader header_{};
  std::vector<uint8_t> rgba_;
};

}  // namespace saturate
