// Reads the coefficients of blocks from unstuffed Huffman-coded data. The state is small enough to
// be kept in registers, also that of two readers used alternately, which hides most of the latency
// of a look-up: each depends on the one before it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "image/huffman_table.h"
#include "image/inverse_dct.h"

namespace saturate {

constexpr int kAcLook = 10, kDcLook = 9;  // bits of a look-up
constexpr size_t kBitPadding = 16;        // zeros that refill() may read past the data

// Indices of coefficients in a group of blocks, by place in the zigzag order. A run in damaged data
// may reach beyond the last one, where libjpeg stores its value. The values of ends of blocks go to
// 0, where the DC coefficient is stored later.
constexpr std::array<uint8_t, 256> kZigzag = [] {
  std::array<uint8_t, 256> order{};
  size_t i = 0;
  for (int diagonal = 0; diagonal < 2 * DCTSIZE - 1; ++diagonal) {
    const int low = std::max(0, diagonal - DCTSIZE + 1), high = std::min(diagonal, DCTSIZE - 1);
    for (int along = low; along <= high; ++along) {
      const int across = diagonal - along;
      // Even diagonals run up, odd ones down.
      const int x = diagonal % 2 == 0 ? along : across, y = diagonal % 2 == 0 ? across : along;
      order[i++] = static_cast<uint8_t>(y * kGroupRow + x);
    }
  }
  while (i < HuffmanEntry::kEndOfBlock) order[i++] = order[DCTSIZE2 - 1];
  return order;
}();

struct BitReader {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  uint64_t next = 0;  // left-aligned
  int count = 0;      // number of valid bits

  // Afterwards at least 56 bits are available.
  [[gnu::always_inline]] void refill() {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    next |= __builtin_bswap64(value) >> count;
    const int bytes = (63 - count) >> 3;
    at = std::min(at + bytes, end + kBitPadding / 2);
    count += bytes * 8;
  }
  [[gnu::always_inline]] void skip(uint32_t bits) {
    next <<= bits;
    count -= static_cast<int>(bits);
  }
  // The same for an entry. A shift uses the low six bits of its operand only, so that this does not
  // wait for them to be extracted.
  [[gnu::always_inline]] void skip(const HuffmanEntry& entry) {
    next <<= entry.word & 63;
    count -= uint8_t(entry.word);
  }
  // Whether bits from after the end were read.
  bool overrun() const { return at - count / 8 > end; }
  // Bits read since `begin`.
  uint64_t since(const uint8_t* begin) const { return uint64_t(at - begin) * 8 - uint64_t(count); }
};

// Reads blocks: their values, or only where they end. Between refills of 56 bits several look-ups
// take bits of their prefixes alone; a symbol that needs more refills for itself.
struct BlockReader {
  BitReader bits;
  const HuffmanTable* ac = nullptr;
  int16_t* block = nullptr;  // in its group; none if coefficients are only parsed
  uint32_t k = 0;            // place of the next coefficient; at least 64 if the block is complete
  bool failed = false;       // there was no such code

  // Value of an entry's symbol. A value with first bit 0 is negative: then it is 2^size - 1 too
  // large.
  [[gnu::always_inline]] static int extract(uint64_t next, const HuffmanEntry& entry) {
    const uint32_t size = entry.size();
    const uint64_t from_value = next << (entry.extract_bits() - size);
    const int64_t positive = static_cast<int64_t>(from_value) >> 63;
    return static_cast<int>(from_value >> 1 >> (63 - size)) +
           static_cast<int>(~positive & (1 - (int64_t{1} << size)));
  }

  // Begins a block: returns its DC difference.
  [[gnu::always_inline]] uint32_t read_dc(const HuffmanTable& table) {
    bits.refill();
    HuffmanEntry entry = table.entries()[bits.next >> (64 - kDcLook)];
    k = 1;
    if (entry.is_whole()) {
      bits.skip(entry);
      return static_cast<uint32_t>(entry.value());
    }
    if (entry.word == 0) [[unlikely]] {
      entry = table.find(static_cast<uint32_t>(bits.next >> 48));
      failed = failed || entry.word == 0;
    }
    const int value = extract(bits.next, entry);
    bits.skip(entry.extract_bits());
    return static_cast<uint32_t>(value);
  }

  // Reads the one symbol of an entry that is not whole.
  template <bool kStore>
  [[gnu::always_inline]] void read_long(HuffmanEntry entry) {
    bits.refill();
    if (entry.word == 0) {
      entry = ac->find(static_cast<uint32_t>(bits.next >> 48));
      if (entry.word == 0) {
        failed = true;
        k = DCTSIZE2;
        return;
      }
    }
    k += entry.zeros();
    if constexpr (kStore) block[kZigzag[k]] = static_cast<int16_t>(extract(bits.next, entry));
    ++k;
    bits.skip(entry.extract_bits());
    bits.refill();
  }

  // Reads one or two symbols. REQUIRES: as many bits as a look-up takes.
  template <bool kStore>
  [[gnu::always_inline]] void step() {
    const HuffmanEntry entry = ac->entries()[bits.next >> (64 - kAcLook)];
    if (!entry.is_whole()) [[unlikely]]
      return read_long<kStore>(entry);
    const uint32_t first = k + entry.zeros(), last = first + entry.more();
    // The block is full after the first symbol: a second one belongs to the next block.
    if (first - (DCTSIZE2 - 1) < HuffmanEntry::kEndOfBlock - (DCTSIZE2 - 1) && first != last)
        [[unlikely]]
      return read_long<kStore>({});
    if constexpr (kStore) {
      block[kZigzag[first]] = static_cast<int16_t>(entry.value());
      block[kZigzag[last]] = static_cast<int16_t>(entry.second());
    }
    k = last + 1;
    bits.skip(entry);
  }

  // Reads on; true when the block is complete.
  template <bool kStore>
  [[gnu::always_inline]] bool turn() {
    constexpr int kSteps = 4;  // whose look-ups fit into a refill
    static_assert(kSteps * kAcLook <= 56);
    bits.refill();
    for (int i = 0; i < kSteps; ++i) {
      step<kStore>();
      if (k >= DCTSIZE2) return true;
    }
    return false;
  }
};

}  // namespace saturate
