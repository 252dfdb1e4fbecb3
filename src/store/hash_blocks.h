// The padding that MD5 and SHA-256 share.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace saturate {

constexpr size_t kHashBlock = 64;  // bytes

// Calls add(block) for each block of the bytes and of what both hashes append: 0x80, zeros, and the
// number of bits, in that order of bytes (RFC 1321, 3.1 and 3.2; FIPS 180-4, 5.1.1).
template <class Add>
void for_each_block(std::span<const std::byte> bytes, std::endian order, const Add& add) {
  const uint64_t bits = uint64_t(bytes.size()) * 8;
  for (; bytes.size() >= kHashBlock; bytes = bytes.subspan(kHashBlock)) add(bytes.data());
  std::array<std::byte, 2 * kHashBlock> end{};
  std::ranges::copy(bytes, end.begin());
  end[bytes.size()] = std::byte{0x80};
  const size_t size = bytes.size() + 9 > kHashBlock ? 2 * kHashBlock : kHashBlock;
  std::memcpy(end.data() + size - sizeof bits, &bits, sizeof bits);
  if (order != std::endian::native)
    std::reverse(end.begin() + ptrdiff_t(size - sizeof bits), end.begin() + ptrdiff_t(size));
  for (size_t at = 0; at < size; at += kHashBlock) add(end.data() + at);
}

}  // namespace saturate
