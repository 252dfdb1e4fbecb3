// The CRC-32 of zlib, gzip and PNG, and a hash of names.
#pragma once

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace saturate {

// `before`: the checksum of the preceding bytes.
inline uint32_t checksum_of(std::span<const std::byte> bytes, uint32_t before = 0) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

// FNV-1a, 64 bits.
constexpr uint64_t kHashStart = 0xcbf29ce484222325ull;
inline uint64_t hash_text(std::string_view text, uint64_t hash = kHashStart) {
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace saturate
