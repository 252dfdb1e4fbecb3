#include "image/huffman_table.h"

#include <algorithm>

namespace saturate {

HuffmanEntry HuffmanTable::entry_of(int symbol, uint32_t length) const {
  const auto size = uint32_t(symbol & 15), run = uint32_t(symbol) >> 4;
  if (is_dc_) return HuffmanEntry::to_extract(length + size, size, 0);
  // A run without a value ends the block, as libjpeg interprets it, unless it is of 15.
  if (size == 0 && run != 15) return HuffmanEntry::to_extract(length, 0, HuffmanEntry::kEndOfBlock);
  return HuffmanEntry::to_extract(length + size, size, run);
}

// Fills `single` by prefix. False if the codes do not fit their lengths.
bool HuffmanTable::assign_codes(Entries& single) {
  int code = 0, index = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    const int count = bits_[size_t(length)];
    offset_[size_t(length)] = index - code;
    if (index + count > int(huffval_.size())) return false;
    if (count > 0 && code + count >= 1 << length) return false;
    for (int i = 0; i < count; ++i, ++code, ++index) {
      const int symbol = huffval_[size_t(index)];
      if (is_dc_ && symbol > 15) return false;
      const HuffmanEntry entry = entry_of(symbol, uint32_t(length));
      if (length > look_) continue;
      const size_t first = size_t(code) << (look_ - length);
      std::fill_n(single.begin() + ptrdiff_t(first), size_t(1) << (look_ - length), entry);
    }
    end_[size_t(length)] = code;
  }
  return true;
}

// Puts values into entries whose prefix includes them, and a second symbol if that fits too.
void HuffmanTable::pair_symbols(Entries& single) {
  const size_t count = size_t(1) << look_;
  // Values first, since a second symbol needs its own.
  for (size_t i = 0; i < count; ++i) {
    const HuffmanEntry entry = single[i];
    const uint32_t bits = entry.bits(), size = entry.size();
    if (bits == 0 || bits > uint32_t(look_)) continue;
    const int raw = int(i >> (uint32_t(look_) - bits)) & ((1 << size) - 1);
    const int value = size == 0 || raw >> (size - 1) != 0 ? raw : raw - (1 << size) + 1;
    single[i] = HuffmanEntry::of(bits, entry.zeros(), value);
  }
  for (size_t i = 0; i < count; ++i) {
    const HuffmanEntry first = single[i];
    entry_[i] = first;
    if (is_dc_ || !first.is_whole() || first.zeros() == HuffmanEntry::kEndOfBlock) continue;
    const HuffmanEntry next = single[i << first.bits() & (count - 1)];
    if (next.is_whole() && first.bits() + next.bits() <= uint32_t(look_))
      entry_[i] = first.then(next);
  }
}

bool HuffmanTable::build(const JHUFF_TBL& source) {
  if (valid_ && std::equal(bits_.begin() + 1, bits_.end(), source.bits + 1) &&
      std::equal(huffval_.begin(), huffval_.end(), source.huffval))
    return true;
  std::copy_n(source.bits, bits_.size(), bits_.begin());
  std::copy_n(source.huffval, huffval_.size(), huffval_.begin());
  Entries single{};
  valid_ = assign_codes(single);
  if (valid_) pair_symbols(single);
  return valid_;
}

HuffmanEntry HuffmanTable::find(uint32_t look) const {
  for (int length = 1; length <= 16; ++length) {
    const int code = int(look >> (16 - length)), end = end_[size_t(length)];
    if (code < end && code >= end - bits_[size_t(length)])
      return entry_of(huffval_[size_t(code + offset_[size_t(length)])], uint32_t(length));
  }
  return {};
}

}  // namespace saturate
