#include "image/huffman_table.h"

#include <algorithm>

namespace saturate {

HuffmanEntry HuffmanTable::entry_of(int symbol, uint32_t length) const {
  const auto size = uint32_t(symbol & 15), run = uint32_t(symbol) >> 4;
  if (is_dc_) return HuffmanEntry::to_extract(length + size, size, 0);
  // A run without a value ends the block, as libjpeg interprets it, unless it is of 15.
  if (size == 0 && run != 15) return HuffmanEntry::to_extract(length, 0, HuffmanEntry::kEndOfBlock);
  return HuffmanEntry::to_extract(length + size, size, run + 1);
}

// Fills the entries of prefixes that begin with a code, with each value that fits into the rest.
void HuffmanTable::fill(Entries& single, uint32_t code, uint32_t length,
                        const HuffmanEntry& entry) {
  const uint32_t look = uint32_t(look_), size = entry.size();
  auto at = single.begin() + ptrdiff_t(code << (look - length));
  if (is_dc_ || length + size > look) {
    std::fill_n(at, size_t(1) << (look - length), entry);
    return;
  }
  const int count = 1 << size;
  for (int raw = 0; raw < count; ++raw) {
    const int value = 2 * raw < count && size > 0 ? raw - count + 1 : raw;
    at = std::fill_n(at, size_t(1) << (look - length - size),
                     HuffmanEntry::of(length + size, entry.places(), value));
  }
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
      if (length <= look_)
        fill(single, uint32_t(code), uint32_t(length), entry_of(symbol, uint32_t(length)));
    }
    end_[size_t(length)] = code;
  }
  return true;
}

// Joins each entry with the symbol after it, if that fits too. Without branches, which could not be
// predicted: this is done for each image.
template <class Entry>
void HuffmanTable::pair_symbols(const Entries& single, std::array<Entry, 1 << kMaxLook>& paired) {
  const size_t count = size_t(1) << look_;
  for (size_t i = 0; i < count; ++i) {
    const HuffmanEntry first = single[i];
    const uint32_t bits = first.bits();
    const HuffmanEntry next = single[i << bits & (count - 1)];
    const int fits = bits + next.bits() <= uint32_t(look_);
    const int goes_on = first.places() != HuffmanEntry::kEndOfBlock;
    const int both = int(first.is_whole()) & int(next.is_whole()) & fits & goes_on;
    const uint64_t joined = 0 - uint64_t(both);
    const Entry alone = Entry::of(first);
    paired[i].word = (alone.then(next).word & joined) | (alone.word & ~joined);
  }
}

bool HuffmanTable::build(const JHUFF_TBL& source, bool is_wide) {
  bool& is_built = is_built_[is_wide && !is_dc_];
  const bool is_same = std::equal(bits_.begin() + 1, bits_.end(), source.bits + 1) &&
                       std::equal(huffval_.begin(), huffval_.end(), source.huffval);
  if (is_same && is_built) return true;
  if (!is_same) is_built_[0] = is_built_[1] = false;
  std::copy_n(source.bits, bits_.size(), bits_.begin());
  std::copy_n(source.huffval, huffval_.size(), huffval_.begin());
  if (is_dc_) {
    std::fill_n(entry_.begin(), size_t(1) << look_, HuffmanEntry{});
    return is_built = assign_codes(entry_);
  }
  Entries single{};
  if (!assign_codes(single)) return false;
  is_wide ? pair_symbols(single, wide_) : pair_symbols(single, entry_);
  return is_built = true;
}

HuffmanEntry HuffmanTable::find(uint32_t look) const {
  const bool is_longer = int(look >> (16 - look_)) >= end_[size_t(look_)];
  for (int length = is_longer ? look_ + 1 : 1; length <= 16; ++length) {
    const int code = int(look >> (16 - length)), end = end_[size_t(length)];
    if (code < end && code >= end - bits_[size_t(length)])
      return entry_of(huffval_[size_t(code + offset_[size_t(length)])], uint32_t(length));
  }
  return {};
}

}  // namespace saturate
