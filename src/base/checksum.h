// CRC-32 as of zlib, gzip and PNG.
#pragma once

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace saturate {

// `before`: the checksum of the preceding bytes.
inline uint32_t checksum_of(std::span<const std::byte> bytes, uint32_t before = 0) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace saturate
