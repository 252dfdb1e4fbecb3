// The inner loops of the fast path, in a plain version and one for each instruction set that
// Highway supports, such as AVX2 and AVX-512; all are bit-identical. Compiled by nvcc too.
//
// Weights are 16-bit fractions, 65535 being 1. A sample p contributes floor(p * 256 * w / 65536):
// the sum, in 1/256 levels, starts at half a level plus half of the expected flooring loss, so that
// a uniform colour is preserved. Sums stay below 2^16 up to kFastMaxTaps taps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/fast_axis.h"
#include "saturate/data/pixel.h"

namespace saturate {

// All rows passed to kernels must be readable and writable this many bytes past their end.
constexpr size_t kFastSlack = 64;

SATURATE_HOST_DEVICE inline int fast_bias(int taps) {
  return 128 + taps / 2;
}

// A pixel as libjpeg's jdcolor.c converts it, with its tables written out.
SATURATE_HOST_DEVICE inline void store_rgb(int y, int cb, int cr, uint8_t* out) {
  const int b = cb - 128, r = cr - 128;
  const int rgb[3] = {y + ((91881 * r + 32768) >> 16), y + ((-22554 * b - 46802 * r + 32768) >> 16),
                      y + ((116130 * b + 32768) >> 16)};
  for (int c = 0; c < 3; ++c)
    out[c] = static_cast<uint8_t>(rgb[c] < 0 ? 0 : rgb[c] > 255 ? 255 : rgb[c]);
}

// A FastAxis arranged for SIMD. Outputs form groups of eight, groups form packs of four. A group's
// eight samples at tap k are in `windows` windows of 16 bytes: window w begins at byte base + k of
// the row and holds the outputs whose entry in `lane` is below 16, at that offset. A lane is a
// 16-bit value whose high byte is the sample, so the even entries are 0x80, for zero.
struct FastGather {
  int packs = 0, taps = 0, windows = 0;
  bool near = false;             // a window has all taps of its outputs
  std::vector<int32_t> base;     // [packs][windows][4]
  std::vector<uint8_t> lane;     // [packs][windows][4][16]
  std::vector<uint16_t> weight;  // [packs][taps][4][8]
};
constexpr int kFastPack = 32;  // outputs

// `origin`: the first sample of the row. REQUIRES: origin <= axis.low.
void make_fast_gather(const FastAxis& axis, int origin, FastGather& gather);

struct FastKernels {
  const char* name;
  // out[x] = sum over k < taps of rows[k][x] * weight[k], x in [0, n).
  void (*blend_rows)(const uint8_t* const* rows, const uint16_t* weight, int taps, int n,
                     uint8_t* out);
  // out[i] = sum over taps, i in [0, gather.packs * kFastPack).
  void (*gather_row)(const FastGather& gather, const uint8_t* row, uint8_t* out);
  // n interleaved pixels: store_rgb().
  void (*ycc_to_rgb)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* out);
  // n values of interleaved pixels, starting with red: normalize_value().
  void (*normalize)(const Normalize& normalize, const uint8_t* in, size_t n, float* out);
  // The same, rounded by to_bfloat16().
  void (*normalize_bfloat16)(const Normalize& normalize, const uint8_t* in, size_t n,
                             uint16_t* out);
  // The same values of `pixels` pixels, as three planes [3, pixels].
  void (*normalize_planes)(const Normalize& normalize, const uint8_t* in, size_t pixels,
                           float* out);
  void (*normalize_planes_bfloat16)(const Normalize& normalize, const uint8_t* in, size_t pixels,
                                    uint16_t* out);
};

// The fastest version that this CPU supports.
const FastKernels& fast_kernels();
const FastKernels& plain_fast_kernels();
// All versions that this CPU supports, for tests; the plain one first.
std::vector<FastKernels> all_fast_kernels();

}  // namespace saturate
