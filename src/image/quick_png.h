// PNGs of 8 bits without interlacing, the common kinds, faster than libpng: libdeflate inflates all
// rows at once, and filters work on a pixel at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "saturate/data/image.h"

struct libdeflate_decompressor;

namespace saturate {

// Keeps its buffers between images. Not for concurrent use.
class QuickPng {
 public:
  // Decodes to RGB, dropping alpha; returns the orientation of an eXIf chunk, or 1. Empty, and
  // `out` unspecified, if libpng has to decode the file, or to report what is wrong with it.
  // REQUIRES: a PNG of width x height.
  std::optional<int> read(std::span<const std::byte> file, int width, int height, Image& out);

 private:
  struct Free {
    void operator()(libdeflate_decompressor* made) const;
  };
  struct Chunks;

  bool find_chunks(std::span<const std::byte> file, Chunks& chunks);
  bool inflate(const Chunks& chunks, size_t bytes);
  bool convert(const Chunks& chunks, Image& out);

  std::unique_ptr<libdeflate_decompressor, Free> inflater_;
  std::vector<uint8_t> deflated_, rows_, line_[2];
};

}  // namespace saturate
