#include "base/checksum.h"

#include <libdeflate.h>

namespace saturate {

uint32_t checksum_of(std::span<const std::byte> bytes, uint32_t before) {
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace saturate
