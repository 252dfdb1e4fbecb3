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
#include "image/packed_layout.h"

namespace saturate {

constexpr int kAcLook = 10, kDcLook = 6;  // bits of a look-up

// Bits that a block takes at most between two BitReader::refill_safe(): a DC value of a long code,
// and look-ups of one coefficient each.
constexpr size_t kMostUnsafeBits = 16 + 15 + 63 * WideEntry::kMostBits;
constexpr size_t kBitPadding = 144;  // zeros that refill() may read past the data
static_assert(sizeof(uint64_t) + (kMostUnsafeBits + 63) / 8 + sizeof(uint64_t) <= kBitPadding);

// Indices of coefficients in a group of blocks, by place in the zigzag order. A run in damaged data
// may reach beyond the last one, where libjpeg stores its value. The values of ends of blocks go to
// 0, where the DC coefficient is stored later.
constexpr std::array<uint8_t, 256> kZigzag = [] {
  std::array<uint8_t, 256> order{};
  for (size_t k = 0; k < HuffmanEntry::kEndOfBlock; ++k) {
    const int place = zigzag_place(int(k));
    order[k] = static_cast<uint8_t>(place / DCTSIZE * kGroupRow + place % DCTSIZE);
  }
  return order;
}();

struct BitReader {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  uint64_t next = 0;   // left-aligned
  uint32_t count = 0;  // number of valid bits

  BitReader() = default;
  BitReader(const uint8_t* begin, const uint8_t* after) : at(begin), end(after) {}
  // By members: a copy of the whole object would keep it in memory instead of registers.
  [[gnu::always_inline]] void set(const BitReader& other) {
    at = other.at;
    end = other.end;
    next = other.next;
    count = other.count;
  }

  // Afterwards at least 56 bits are available. REQUIRES: at most kMostUnsafeBits since
  // refill_safe().
  [[gnu::always_inline]] void refill() {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    next |= __builtin_bswap64(value) >> count;
    at += (count ^ 63) >> 3;
    count |= 56;
  }
  [[gnu::always_inline]] void refill_safe() {
    refill();
    at = std::min(at, end + sizeof next);
  }
  [[gnu::always_inline]] void skip(uint32_t bits) {
    next <<= bits;
    count -= bits;
  }
  // Whether bits from after the end were read.
  bool overrun() const { return at - count / 8 > end; }
  // A reader with `available` bits, up to 127, before `at`. Without the address of a reader, which
  // would be kept in memory, so that every look-up waits for it.
  [[gnu::noinline, gnu::cold]] static BitReader with_bits(uint32_t available, const uint8_t* at,
                                                          const uint8_t* end) {
    const uint32_t bytes = (available + 7) / 8;
    BitReader made(at - bytes, end);
    made.refill_safe();
    made.skip(bytes * 8 - available);
    return made;
  }
  // Bits read since `begin`.
  uint64_t since(const uint8_t* begin) const { return uint64_t(at - begin) * 8 - uint64_t(count); }
};

// Reads blocks: their values, or only where they end. Between refills of 56 bits several look-ups
// take bits of their prefixes alone; a symbol whose value is not in the look-up refills after
// itself.
struct BlockReader {
  static constexpr uint32_t kLast = DCTSIZE2 - 1;
  BitReader bits;
  const HuffmanTable* ac = nullptr;
  int16_t* block = nullptr;  // in its group; none if coefficients are only parsed
  uint32_t k = 0;            // place of the latest coefficient; from kLast on the block is complete
  bool failed = false;       // there was no such code

  // Begins a block with these tables: returns its DC difference.
  [[gnu::always_inline]] uint32_t begin(const HuffmanTable& dc, const HuffmanTable& ac_of_block) {
    ac = &ac_of_block;
    bits.refill_safe();
    HuffmanEntry entry = dc.entries()[bits.next >> (64 - kDcLook)];
    k = 0;
    if (entry.word == 0) [[unlikely]] {
      entry = dc.find(static_cast<uint32_t>(bits.next >> 48));
      failed = failed || entry.word == 0;
    }
    const int value = entry.extract(bits.next);
    bits.skip(entry.all_bits());
    return static_cast<uint32_t>(value);
  }

  // Reads the one symbol of an entry that is not whole.
  template <bool kStore>
  [[gnu::always_inline]] void read_long(HuffmanEntry entry) {
    if (entry.word == 0) {
      bits.refill_safe();
      entry = ac->find(static_cast<uint32_t>(bits.next >> 48));
      if (entry.word == 0) {
        failed = true;
        k = kLast;
        return;
      }
    }
    k += entry.places();
    if constexpr (kStore) block[kZigzag[k]] = static_cast<int16_t>(entry.extract(bits.next));
    bits.skip(entry.all_bits());
    bits.refill_safe();
  }

  // Reads on; true when the block is complete. `kWide`: by wide entries.
  template <bool kStore, bool kWide>
  [[gnu::always_inline]] bool turn() {
    // Without wide entries, the last step may still read a code of kAcLook bits and its value.
    constexpr int kSteps = 4;
    static_assert((kSteps - 1) * kAcLook + kAcLook + 15 <= 56);
    static_assert(kSteps * WideEntry::kMostBits <= 56);
    bits.refill();
    uint64_t used = 0;  // in the low byte: bits
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      const auto entry = ac->entries<kWide>()[bits.next >> (64 - kAcLook)];
      if (!entry.is_whole()) [[unlikely]] {
        bits.count -= uint8_t(used);
        used = 0;
        if constexpr (kWide) {
          bits.refill_safe();
          read_long<kStore>(entry.long_symbol());
        } else {
          read_long<kStore>(entry);
        }
        if (k >= kLast) return true;
        continue;
      }
      const uint32_t first = k + entry.places();
      k = first + entry.more();
      if constexpr (kStore) {
        // If there is one symbol, k is `first`. first() is stored last: of a wide entry, it alone
        // has the value.
        block[kZigzag[k]] = entry.second();
        block[kZigzag[first]] = entry.first(bits.next);
      }
      // A shift uses the low six bits of its operand only, so that this does not wait for them to
      // be extracted.
      bits.next <<= entry.word & 63;
      used += entry.word;
      if (k < kLast) [[likely]]
        continue;
      bits.count -= uint8_t(used);
      // If the block was full after the first symbol, the second one belongs to the next block. The
      // first condition follows from the others; it is false at nearly all ends of blocks.
      if (k - HuffmanEntry::kEndOfBlock >= kLast && first >= kLast && k != first) [[unlikely]] {
        k = first - entry.places();
        bits.set(BitReader::with_bits(bits.count + entry.bits(), bits.at, bits.end));
        read_long<kStore>({});
      }
      return true;
    }
    bits.count -= uint8_t(used);
    return false;
  }
};

}  // namespace saturate
