// The inverse DCT without SIMD: the same operations on one lane.
#include <algorithm>
#include <cstring>

#include "image/inverse_dct.h"

namespace saturate {
namespace {

constexpr int kFixedBits = 13, kKeptBits = 2;

// 32 bits that wrap, as in SIMD.
uint32_t scaled_sum(int16_t a, int16_t b, int first, int second) {
  return uint32_t(a * first) + uint32_t(b * second);
}

int16_t wrapped_sum(int16_t a, int16_t b) {
  return static_cast<int16_t>(a + b);
}

// Divides by 2^shift, rounding, and saturates.
int16_t rounded(uint32_t sum, int shift) {
  const int value = static_cast<int32_t>(sum + (uint32_t{1} << (shift - 1))) >> shift;
  return static_cast<int16_t>(std::clamp(value, -32768, 32767));
}

void pass8(int16_t (&v)[8], int shift) {
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

void pass4(int16_t (&v)[8], int shift) {
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

void pass2(int16_t (&v)[8], int shift) {
  const uint32_t even = scaled_sum(v[0], v[0], 1 << 14, 1 << 14);
  const uint32_t odd = scaled_sum(v[7], v[5], -5906, 6967) + scaled_sum(v[3], v[1], -10426, 29692);
  v[0] = rounded(even + odd, shift + 2);
  v[1] = rounded(even - odd, shift + 2);
}

void pass(int16_t (&v)[8], int shift, int size) {
  size == 8 ? pass8(v, shift) : size == 4 ? pass4(v, shift) : pass2(v, shift);
}

template <int kSize>
void plain_block(const int16_t* block, const uint16_t* quant, uint8_t* const* rows, size_t x) {
  int16_t half[8][8];  // [column][row]: columns transformed
  for (size_t u = 0; u < 8; ++u) {
    for (size_t v = 0; v < 8; ++v)
      half[u][v] = static_cast<int16_t>(block[v * kGroupRow + u] * quant[v * 8 + u]);
    pass(half[u], kFixedBits - kKeptBits, kSize);
  }
  for (size_t y = 0; y < kSize; ++y) {
    int16_t row[8];
    for (size_t u = 0; u < 8; ++u) row[u] = half[u][y];
    pass(row, kFixedBits + kKeptBits + 3, kSize);
    for (size_t u = 0; u < kSize; ++u)
      rows[y][x + u] = static_cast<uint8_t>(std::clamp(row[u] + 128, 0, 255));
  }
}

template <int kSize>
void plain_inverse(const int16_t* groups, const uint16_t* quant, int count, uint8_t* const* rows,
                   size_t x) {
  for (int b = 0; b < count; ++b)
    plain_block<kSize>(groups + b / kGroupBlocks * kGroupValues + b % kGroupBlocks * 8, quant, rows,
                       x + size_t(b) * kSize);
}

// The mean of a block.
void plain_inverse1(const int16_t* groups, const uint16_t* quant, int count, uint8_t* const* rows,
                    size_t x) {
  for (int b = 0; b < count; ++b) {
    const int16_t dc = groups[b / kGroupBlocks * kGroupValues + b % kGroupBlocks * 8];
    const int level = ((static_cast<int16_t>(dc * quant[0]) + 4) >> 3) + 128;
    rows[0][x + size_t(b)] = static_cast<uint8_t>(std::clamp(level, 0, 255));
  }
}

}  // namespace

InverseDct plain_inverse_dct(int size) {
  if (size == 1) return plain_inverse1;
  return size == 8 ? plain_inverse<8> : size == 4 ? plain_inverse<4> : plain_inverse<2>;
}

}  // namespace saturate
