// CRC-32 as of zlib, gzip and PNG.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace saturate {

// `before`: the checksum of the preceding bytes.
uint32_t checksum_of(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace saturate
