// Reads blocks of coefficients from stuffed entropy-coded bytes, for CPU threads and a CUDA kernel:
// the results of block_reader.h, with tables small enough for a block's shared memory.
#pragma once

#include "image/effect_passes.h"
#include "image/packed_layout.h"

namespace saturate {

constexpr int kUnpackLook = 9;  // bits of a look-up

// A look-up by a prefix of kUnpackLook bits finds the code's length << 8 | its symbol; 0: a longer
// code, or none.
struct UnpackCodes {
  uint16_t look[1 << kUnpackLook];
  CodeLimits limits;
};

// The high 32 bits of (high, low) << bits, and the low ones of (high, low) >> bits; bits < 32.
SATURATE_HOST_DEVICE inline uint32_t funnel_left(uint32_t high, uint32_t low, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, bits);
#else
  return uint32_t(((uint64_t{high} << 32 | low) << bits) >> 32);
#endif
}
SATURATE_HOST_DEVICE inline uint32_t funnel_right(uint32_t high, uint32_t low, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, bits);
#else
  return uint32_t((uint64_t{high} << 32 | low) >> bits);
#endif
}
SATURATE_HOST_DEVICE inline uint32_t bytes_swapped(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x0123);
#else
  return __builtin_bswap32(word);
#endif
}
// Whether a byte is 0xff.
SATURATE_HOST_DEVICE inline bool has_mark(uint32_t word) {
  return ((~word - 0x01010101u) & word & 0x80808080u) != 0;
}

// The bits of a part. After its end, and after a marker in it, bits are 0.
struct BitWindow {
  const std::byte* data;  // of all parts, aligned to 4 bytes, with kPackedSlack more
  uint32_t at, end;       // offsets in it: the next byte, and the part's end
  bool splits_last;       // the last byte may be 0xff, whose stuffed zero is the next part's
  uint32_t high, low;     // the next bits, from the highest
  int count;              // of them
  int past;               // bits that came from after the end, including those that were used
  uint32_t ahead;         // the aligned word that holds byte `at`

  static constexpr int kBroken = 1 << 24;  // more than all bits of a part

  SATURATE_HOST_DEVICE uint32_t word_at(uint32_t offset) const {
    return load_piece<4>(data + offset / 4 * 4).word[0];
  }
  SATURATE_HOST_DEVICE void open(const std::byte* bytes, const PackedPart& part, bool splits) {
    data = bytes;
    at = part.begin;
    end = part.begin + part.bytes;
    splits_last = splits;
    high = low = 0;
    count = past = 0;
    ahead = word_at(at);
  }

  // Four bytes, if one of them may be stuffed, or after the end.
  SATURATE_HOST_DEVICE uint32_t read_bytes() {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      word <<= 8;
      if (at == end) {
        past += 8;
        continue;
      }
      const auto byte = static_cast<uint32_t>(data[at++]);
      word |= byte;
      if (byte != 0xff) continue;
      if (at < end && data[at] == std::byte{0}) {
        ++at;
      } else if (at < end || !splits_last) {
        at = end;
        past += kBroken;
      }
    }
    ahead = word_at(at);
    return word;
  }

  // Afterwards at least 32 bits are available.
  SATURATE_HOST_DEVICE void refill() {
    if (count >= 32) return;
    const uint32_t next = load_piece<4>(data + at / 4 * 4 + 4).word[0];
    uint32_t word = funnel_right(next, ahead, at % 4 * 8);
    if (end - at >= 4 && !has_mark(word)) {
      word = bytes_swapped(word);
      at += 4;
      ahead = next;
    } else {
      word = read_bytes();
    }
    high |= word >> count;
    low = funnel_right(word, 0, static_cast<uint32_t>(count));
    count += 32;
  }

  SATURATE_HOST_DEVICE void skip(uint32_t bits) {
    high = funnel_left(high, low, bits);
    low <<= bits;
    count -= static_cast<int>(bits);
  }

  // Takes a code of `length` bits, and the value of `size` bits after it: one with first bit 0 is
  // negative, and 2^size - 1 too large. REQUIRES: refill(); length + size < 32.
  SATURATE_HOST_DEVICE int take(uint32_t length, uint32_t size) {
    const uint32_t value = high << length;
    const auto raw = static_cast<int>(value >> 1 >> (31 - size));
    skip(length + size);
    return static_cast<int32_t>(value) < 0 ? raw : raw + 1 - (1 << size);
  }

  // Whether bits from after the end were used.
  SATURATE_HOST_DEVICE bool overrun() const { return count < past; }
  // Whether the part's last bits are `left`, as in PackedPart.
  SATURATE_HOST_DEVICE bool ends_with(int left) {
    refill();
    const int unused = count - past;
    return at == end && (left == kPadding ? unused >= 0 && unused < 8 : unused == left);
  }
};

// The code's length << 8 | its symbol; 0 if there is none.
SATURATE_HOST_DEVICE inline uint32_t find_symbol(const UnpackCodes& codes, const uint8_t* huffval,
                                                 uint32_t bits) {
  const uint32_t found = codes.look[bits >> (32 - kUnpackLook)];
  if (found != 0) return found;
  for (int length = kUnpackLook + 1; length <= 16; ++length) {
    const auto code = static_cast<int32_t>(bits >> (32 - length));
    if (code < codes.limits.end[length])
      return uint32_t(length) << 8 | huffval[(code + codes.limits.offset[length]) & 255];
  }
  return 0;
}

// A component's tables.
struct BlockCodes {
  const UnpackCodes* dc;
  const UnpackCodes* ac;
  const uint8_t* dc_values;  // huffval
  const uint8_t* ac_values;
};

// Reads the next block, whose predictor is `dc`. `block`, unless it is null, gets its coefficients,
// row by row; `order` has the place of each in the order of the data. REQUIRES: `block` holds 0s.
// False if a code does not exist, or the data has ended.
SATURATE_HOST_DEVICE inline bool read_block(BitWindow& bits, const BlockCodes& codes,
                                            const uint8_t* order, uint32_t& dc, int16_t* block) {
  bits.refill();
  uint32_t found = find_symbol(*codes.dc, codes.dc_values, bits.high);
  if (found == 0) return false;
  dc += static_cast<uint32_t>(bits.take(found >> 8, found & 15));
  if (block != nullptr) block[0] = static_cast<int16_t>(dc);
  for (uint32_t k = 1; k < 64; ++k) {
    bits.refill();
    found = find_symbol(*codes.ac, codes.ac_values, bits.high);
    if (found == 0) return false;
    const uint32_t size = found & 15, run = found >> 4 & 15;
    const int value = bits.take(found >> 8, size);
    if (size == 0 && run != 15) break;
    k += run;
    if (block != nullptr) block[order[k]] = static_cast<int16_t>(value);
  }
  return !bits.overrun();
}
constexpr int kOrderPlaces = 80;  // a run may begin at place 63

}  // namespace saturate
