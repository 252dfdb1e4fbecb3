// The two inner loops of resizing, in fixed point.
//
// A weight of 1 is 1 << precision; the weights of one output are taps values, zero-padded to the
// even number `pitch`, so that they can be processed in pairs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace saturate {

struct BlendFilter {
  const int16_t* weight;
  int taps, pitch, precision;
};

// Bytes that blend_pixels may read past its last pixel.
constexpr size_t kBlendSlack = 8;

// out[x] = sum over taps k of weight[k] * in[k * stride + x], for x in [0, n).
void blend_rows(const BlendFilter& filter, const uint8_t* in, size_t stride, uint8_t* out, int n);

// Output pixel i in [0, n), of three channels: the sum over taps k of weight[i * pitch + k] times
// pixel first[i] + k of `row`.
void blend_pixels(const BlendFilter& filter, const uint8_t* row, const int* first, uint8_t* out,
                  int n);

// The same without SIMD: the reference in tests, and the fallback without AVX2.
void blend_rows_plain(const BlendFilter& filter, const uint8_t* in, size_t stride, uint8_t* out,
                      int n);
void blend_pixels_plain(const BlendFilter& filter, const uint8_t* row, const int* first,
                        uint8_t* out, int n);

}  // namespace saturate
