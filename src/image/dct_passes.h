// One pass of the inverse DCT, over eight values on one lane, with the arithmetic of libjpeg's
// SIMD: products and sums in 32 bits that wrap, results in 16 bits that saturate. Compiled by nvcc
// too.
#pragma once

#include <cstdint>

#include "saturate/data/pixel.h"

namespace saturate {

constexpr int kDctFixedBits = 13, kDctKeptBits = 2;
// The shifts of the passes over columns and then over rows.
constexpr int kDctColumnShift = kDctFixedBits - kDctKeptBits;
constexpr int kDctRowShift = kDctFixedBits + kDctKeptBits + 3;

SATURATE_HOST_DEVICE inline uint32_t scaled_sum(int16_t a, int16_t b, int first, int second) {
  return uint32_t(a * first) + uint32_t(b * second);
}

SATURATE_HOST_DEVICE inline int16_t wrapped_sum(int16_t a, int16_t b) {
  return static_cast<int16_t>(a + b);
}

SATURATE_HOST_DEVICE inline int limited(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// Divides by 2^shift, rounding, and saturates.
SATURATE_HOST_DEVICE inline int16_t rounded(uint32_t sum, int shift) {
  const int value = static_cast<int32_t>(sum + (uint32_t{1} << (shift - 1))) >> shift;
  return static_cast<int16_t>(limited(value, -32768, 32767));
}

SATURATE_HOST_DEVICE inline uint8_t level_of(int16_t value) {
  return static_cast<uint8_t>(limited(value + 128, 0, 255));
}

SATURATE_HOST_DEVICE inline void dct_pass8(int16_t (&v)[8], int shift) {
  const uint32_t even2 = scaled_sum(v[2], v[6], 4433, 4433 - 15137);
  const uint32_t even3 = scaled_sum(v[2], v[6], 4433 + 6270, 4433);
  const uint32_t even0 = scaled_sum(v[0], v[4], 8192, 8192);
  const uint32_t even1 = scaled_sum(v[0], v[4], 8192, -8192);
  const uint32_t even[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
  const int16_t z3 = wrapped_sum(v[7], v[3]), z4 = wrapped_sum(v[5], v[1]);
  const uint32_t both3 = scaled_sum(z3, z4, 9633 - 16069, 9633);
  const uint32_t both4 = scaled_sum(z3, z4, 9633, 9633 - 3196);
  const uint32_t odd[4] = {scaled_sum(v[7], v[1], -7373, 12299 - 7373) + both4,
                           scaled_sum(v[5], v[3], -20995, 25172 - 20995) + both3,
                           scaled_sum(v[5], v[3], 16819 - 20995, -20995) + both4,
                           scaled_sum(v[7], v[1], 2446 - 7373, -7373) + both3};
  for (int i = 0; i < 4; ++i) {
    v[i] = rounded(even[i] + odd[i], shift);
    v[7 - i] = rounded(even[i] - odd[i], shift);
  }
}

// To four values, of which v[4] has no part.
SATURATE_HOST_DEVICE inline void dct_pass4(int16_t (&v)[8], int shift) {
  const uint32_t first = scaled_sum(v[0], 0, 1 << 14, 0);
  const uint32_t second = scaled_sum(v[2], v[6], 15137, -6270);
  const uint32_t odd[2] = {
      scaled_sum(v[7], v[5], -4176, -4926) + scaled_sum(v[3], v[1], 7373, 20995),
      scaled_sum(v[7], v[5], -1730, 11893) + scaled_sum(v[3], v[1], -17799, 8697)};
  const uint32_t even[2] = {first + second, first - second};
  for (int i = 0; i < 2; ++i) {
    v[i] = rounded(even[i] + odd[i], shift + 1);
    v[3 - i] = rounded(even[i] - odd[i], shift + 1);
  }
}

// To two values, of v[0] and the odd ones.
SATURATE_HOST_DEVICE inline void dct_pass2(int16_t (&v)[8], int shift) {
  const uint32_t even = scaled_sum(v[0], v[0], 1 << 14, 1 << 14);
  const uint32_t odd = scaled_sum(v[7], v[5], -5906, 6967) + scaled_sum(v[3], v[1], -10426, 29692);
  v[0] = rounded(even + odd, shift + 2);
  v[1] = rounded(even - odd, shift + 2);
}

template <int kSize>
SATURATE_HOST_DEVICE inline void dct_pass(int16_t (&v)[8], int shift) {
  if constexpr (kSize == 8) dct_pass8(v, shift);
  if constexpr (kSize == 4) dct_pass4(v, shift);
  if constexpr (kSize == 2) dct_pass2(v, shift);
}

// The sample of a block reduced to one: its mean.
SATURATE_HOST_DEVICE inline uint8_t dct_mean(int16_t dc, uint16_t quant) {
  return static_cast<uint8_t>(limited(((static_cast<int16_t>(dc * quant) + 4) >> 3) + 128, 0, 255));
}

}  // namespace saturate
