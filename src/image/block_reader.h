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

struct BlockReader {
  BitReader bits;
  const HuffmanTable* ac = nullptr;
  int16_t* block = nullptr;  // in its group; none if coefficients are only parsed
  uint32_t k = 0;            // place of the next coefficient; at least 64 if the block is complete
  bool failed = false;       // there was no such code

  // Value of an entry's first symbol that is not part of it, else 0. A value with first bit 0 is
  // negative: then it is 2^size - 1 too large.
  [[gnu::always_inline]] static int extract(uint64_t next, const HuffmanEntry& entry) {
    const uint32_t size = entry.size();
    const uint64_t from_value = next << (entry.bits() - size);
    const int64_t positive = static_cast<int64_t>(from_value) >> 63;
    return static_cast<int>(from_value >> 1 >> (63 - size)) +
           static_cast<int>(~positive & (1 - (int64_t{1} << size)));
  }

  // Codes that no entry contains.
  [[gnu::noinline]] static HuffmanEntry find_long(BitReader& bits, const HuffmanTable& table) {
    bits.refill();
    return table.find(static_cast<uint32_t>(bits.next >> 48));
  }

  // Begins a block: returns its DC difference.
  [[gnu::always_inline]] uint32_t read_dc(const HuffmanTable& table) {
    bits.refill();
    HuffmanEntry entry = table.entries()[bits.next >> (64 - kDcLook)];
    if (entry.bits() == 0) [[unlikely]] {
      BitReader copy = bits;  // so that no address of `bits` leaves this function
      entry = find_long(copy, table);
      bits = copy;
      failed = failed || entry.bits() == 0;
    }
    const int value = entry.value() + extract(bits.next, entry);
    bits.skip(entry.bits());
    k = 1;
    return static_cast<uint32_t>(value);
  }

  // Reads one or two symbols. REQUIRES: at most one call since refill() or read_dc().
  template <bool kStore>
  [[gnu::always_inline]] void step() {
    HuffmanEntry entry = ac->entries()[bits.next >> (64 - kAcLook)];
    if (uint8_t(entry.word) == 0) [[unlikely]] {
      BitReader copy = bits;
      entry = find_long(copy, *ac);
      bits = copy;
      if (entry.bits() == 0) {
        failed = true;
        k = DCTSIZE2;
        return;
      }
    }
    const uint32_t first = k + entry.zeros(), last = first + entry.more();
    if constexpr (kStore) {
      const int extracted = extract(bits.next, entry);
      block[kZigzag[first]] = static_cast<int16_t>(entry.value() + extracted);
      block[kZigzag[last]] = static_cast<int16_t>(entry.second() + extracted);
    }
    k = last + 1;
    if (k >= DCTSIZE2 && first >= DCTSIZE2 - 1 && first != last) [[unlikely]] {
      // The first symbol ended the block: the second belongs to the next one.
      if constexpr (kStore) block[kZigzag[first]] = static_cast<int16_t>(entry.value());
      const HuffmanEntry alone = ac->find(static_cast<uint32_t>(bits.next >> 48));
      bits.skip(alone.bits());
      return;
    }
    bits.skip(entry);
  }

  // Reads on and stores coefficients; true when the block is complete.
  [[gnu::always_inline]] bool turn() {
    step<true>();
    if (k >= DCTSIZE2) return true;
    bits.refill();
    step<true>();
    return k >= DCTSIZE2;
  }

  // Reads several symbols without their values. REQUIRES as step(); `entries`: those of `ac`.
  [[gnu::always_inline]] void parse_step(const uint16_t* entries) {
    const uint64_t entry = entries[bits.next >> (64 - HuffmanTable::kParseLook)];
    const uint32_t after = k + uint32_t(entry >> 6);
    // The block must end with the entry, or after it.
    const bool ends = after - (HuffmanTable::kParseEnd + 1) < DCTSIZE2 - 1;
    if (entry == 0 || (after >= DCTSIZE2 && !ends)) [[unlikely]]
      return step<false>();
    k = after;
    bits.next <<= entry & 63;
    bits.count -= int(entry & 63);
  }

  // The same as turn(). Without kTable `entries` are not used.
  template <bool kTable>
  [[gnu::always_inline]] bool parse_turn(const uint16_t* entries) {
    kTable ? parse_step(entries) : step<false>();
    if (k >= DCTSIZE2) return true;
    bits.refill();
    kTable ? parse_step(entries) : step<false>();
    return k >= DCTSIZE2;
  }
};

}  // namespace saturate
