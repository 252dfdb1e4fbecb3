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

// AVIF through libavif; a build without it says so. open() then read(), or open() alone; `bytes`
// must live until then.
class AvifDecoder {
 public:
  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  // Pixels as stored, before rotation; alpha is dropped. Returns the EXIF orientation that stands
  // for the file's rotation and mirroring.
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
