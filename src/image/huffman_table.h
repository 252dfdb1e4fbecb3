// Huffman tables of baseline scans. One look-up finds one or two symbols, with their values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "image/libjpeg.h"

namespace saturate {

// A symbol's value, which follows the `length` bits of its code in `prefix`, the next 64 bits of
// the data. `shift`: 63 less the value's bits. If the value's first bit is 0, it is negative, and
// `negative` (1 - 2^bits) is added.
[[gnu::always_inline]] inline int extracted(uint64_t prefix, uint32_t length, uint32_t shift,
                                            int negative) {
  const uint64_t from_value = prefix << length;
  const int64_t is_positive = int64_t(from_value) >> 63;
  return int(from_value >> 1 >> shift) + int(~is_positive & negative);
}

// The symbols that a prefix of the data begins with, in one word, so that one load fetches them:
// byte 0: bits of the codes and values together; 0: no value is in the prefix as a whole;
// byte 1: how many places after the latest coefficient the first value is;
// 16 bits: how many places after the first value the second one is; 0: there is one symbol;
// 16 bits each: the first value, and the second.
// If a value must be extracted, these are instead, from byte 2 on:
// byte 2: 63 less the bits of the value;
// byte 3: bits of the code;
// 16 bits: bits of both;
// 16 bits: what is added to a negative value.
// All 0: a longer code, or none.
struct HuffmanEntry {
  static constexpr uint32_t kEndOfBlock = 128;  // places; further than any run reaches
  uint64_t word = 0;

  static HuffmanEntry of(uint32_t bits, uint32_t places, int value) {
    const auto low = uint16_t(value);
    return {bits | places << 8 | uint64_t(low) << 32 | uint64_t(low) << 48};
  }
  static HuffmanEntry to_extract(uint32_t bits, uint32_t size, uint32_t places) {
    const auto negative = uint16_t(1 - (1 << size));
    return {places << 8 | (63 - size) << 16 | (bits - size) << 24 | uint64_t(bits) << 32 |
            uint64_t(negative) << 48};
  }
  static HuffmanEntry of(const HuffmanEntry& single) { return single; }
  HuffmanEntry then(const HuffmanEntry& next) const {
    return {(word & 0x0000ffff'0000ffff) + next.bits() + (uint64_t(next.places()) << 16) +
            (next.word >> 32 << 48)};
  }
  uint32_t bits() const { return uint8_t(word); }
  bool is_whole() const { return bits() != 0; }
  uint32_t places() const { return uint8_t(word >> 8); }
  // Whole ones only:
  uint32_t more() const { return uint32_t(word) >> 16; }
  // rotr: one instruction that leaves `word` as it is, where a shift takes two.
  int16_t first(uint64_t /*prefix*/) const { return int16_t(std::rotr(word, 32)); }
  int16_t second() const { return int16_t(std::rotr(word, 48)); }
  // Others only:
  uint32_t shift() const { return uint32_t(word >> 16) & 63; }
  uint32_t size() const { return 63 - shift(); }
  uint32_t length() const { return uint32_t(word) >> 24 & 63; }
  uint32_t all_bits() const { return uint8_t(word >> 32); }
  int extract(uint64_t prefix) const {
    return extracted(prefix, length(), shift(), int(int64_t(word) >> 48));
  }
};

// The same for a single lane, whose look-ups each depend on the one before: the first value is
// always extracted from the data, so that no branch depends on whether an entry has it.
// byte 0: bits of the codes and values together; 0: the first symbol has more than kMostBits;
// byte 1: how many places after the latest coefficient the first value is;
// byte 2: how many places after the first value the second one is; 0: there is one symbol;
// byte 3: bits of the first code;
// byte 4: 63 less the bits of the first value;
// byte 5: the second value;
// 16 bits: what is added to a negative first value.
// All 0: a longer code, or none.
struct WideEntry {
  static constexpr uint32_t kMostBits = 14;
  uint64_t word = 0;

  // `single`: of one symbol.
  static WideEntry of(const HuffmanEntry& single) {
    if (single.word == 0) return {};
    const bool is_whole = single.is_whole();
    const uint32_t size =
        is_whole ? uint32_t(std::bit_width(uint32_t(std::abs(single.first(0))))) : single.size();
    const uint32_t all = is_whole ? single.bits() : single.all_bits();
    const auto negative = uint16_t(1 - (1 << size));
    return {(all <= kMostBits ? all : 0u) | single.places() << 8 | (all - size) << 24 |
            uint64_t(63 - size) << 32 | uint64_t(negative) << 48};
  }
  WideEntry then(const HuffmanEntry& next) const {
    return {word + next.bits() + (next.places() << 16) + (uint64_t(uint8_t(next.first(0))) << 40)};
  }
  bool is_whole() const { return bits() != 0; }
  uint32_t bits() const { return uint8_t(word); }
  uint32_t places() const { return uint8_t(word >> 8); }
  uint32_t more() const { return uint8_t(word >> 16); }
  uint32_t length() const { return uint32_t(word) >> 24; }
  uint32_t shift() const { return uint32_t(word >> 32) & 63; }
  int16_t first(uint64_t prefix) const {
    return int16_t(extracted(prefix, length(), shift(), int(int64_t(word) >> 48)));
  }
  int16_t second() const { return int8_t(word >> 40); }
  // REQUIRES: !is_whole().
  HuffmanEntry long_symbol() const {
    const uint32_t size = 63 - shift();
    return word == 0 ? HuffmanEntry{} : HuffmanEntry::to_extract(length() + size, size, places());
  }
};

class HuffmanTable {
 public:
  // `look`: bits of a look-up. A table of DC coefficients has one symbol in each entry, and its
  // values must be extracted.
  HuffmanTable(int look, bool dc) : look_(look), is_dc_(dc) {}
  // Makes entries(); with `is_wide`, for AC coefficients, wide entries instead. False if libjpeg
  // would refuse the table.
  bool build(const JHUFF_TBL& source, bool is_wide);
  // The entry for 16 bits, whatever the code's length, without its value; 0 if there is none.
  HuffmanEntry find(uint32_t look) const;
  template <bool kWide = false>
  const auto* entries() const {
    if constexpr (kWide)
      return wide_.data();
    else
      return entry_.data();
  }

  static constexpr int kMaxLook = 10;
  // If the second symbol has a value, at least 3 of the bits are the first symbol and the second
  // one's code, so that the value fits in a byte of WideEntry.
  static_assert(kMaxLook - 3 <= 7);

 private:
  using Entries = std::array<HuffmanEntry, 1 << kMaxLook>;
  bool assign_codes(Entries& single);
  void fill(Entries& single, uint32_t code, uint32_t length, const HuffmanEntry& entry);
  template <class Entry>
  void pair_symbols(const Entries& single, std::array<Entry, 1 << kMaxLook>& paired);
  HuffmanEntry entry_of(int symbol, uint32_t length) const;

  const int look_;
  const bool is_dc_;
  bool is_built_[2] = {};  // entries, wide ones
  alignas(64) Entries entry_{};
  alignas(64) std::array<WideEntry, 1 << kMaxLook> wide_{};
  std::array<uint8_t, 17> bits_{};  // as in JHUFF_TBL
  std::array<uint8_t, 256> huffval_{};
  std::array<int32_t, 17> end_{};     // [length]: one more than the last code of that length
  std::array<int32_t, 17> offset_{};  // [length]: huffval_'s index of a code, less the code
};

}  // namespace saturate
