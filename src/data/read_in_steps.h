// Reading what a file claims to have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// In steps: a server can claim any size, and memory is used for what it sends.
inline std::vector<std::byte> read_in_steps(const ReadableFile& file, uint64_t offset,
                                            uint64_t size) {
  constexpr uint64_t kStep = 16 << 20;
  std::vector<std::byte> bytes;
  while (bytes.size() < size) {
    const size_t at = bytes.size();
    bytes.resize(at + size_t(std::min(kStep, size - at)));
    file.read_at(offset + at, std::span(bytes).subspan(at));
  }
  return bytes;
}

}  // namespace saturate
