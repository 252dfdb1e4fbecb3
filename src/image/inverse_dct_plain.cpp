// The inverse DCT without SIMD: the same operations on one lane.
#include "image/dct_passes.h"
#include "image/inverse_dct.h"

namespace saturate {
namespace {

template <int kSize>
void plain_block(const int16_t* block, const uint16_t* quant, uint8_t* const* rows, size_t x) {
  int16_t half[8][8];  // [column][row]: columns transformed
  for (size_t u = 0; u < 8; ++u) {
    for (size_t v = 0; v < 8; ++v)
      half[u][v] = static_cast<int16_t>(block[v * kGroupRow + u] * quant[v * 8 + u]);
    dct_pass<kSize>(half[u], kDctColumnShift);
  }
  for (size_t y = 0; y < kSize; ++y) {
    int16_t row[8];
    for (size_t u = 0; u < 8; ++u) row[u] = half[u][y];
    dct_pass<kSize>(row, kDctRowShift);
    for (size_t u = 0; u < kSize; ++u) rows[y][x + u] = level_of(row[u]);
  }
}

template <int kSize>
void plain_inverse(const int16_t* groups, const uint16_t* quant, int count, uint8_t* const* rows,
                   size_t x) {
  for (int b = 0; b < count; ++b)
    plain_block<kSize>(groups + b / kGroupBlocks * kGroupValues + b % kGroupBlocks * 8, quant, rows,
                       x + size_t(b) * kSize);
}

void plain_inverse1(const int16_t* groups, const uint16_t* quant, int count, uint8_t* const* rows,
                    size_t x) {
  for (int b = 0; b < count; ++b)
    rows[0][x + size_t(b)] =
        dct_mean(groups[b / kGroupBlocks * kGroupValues + b % kGroupBlocks * 8], quant[0]);
}

}  // namespace

InverseDct plain_inverse_dct(int size) {
  if (size == 1) return plain_inverse1;
  return size == 8 ? plain_inverse<8> : size == 4 ? plain_inverse<4> : plain_inverse<2>;
}

}  // namespace saturate
