// The inner loops of effects on the CPU, in a plain version and one for each instruction set that
// Highway supports, such as AVX2 and AVX-512; all are bit-identical to effect_pixel.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "saturate/data/effects.h"

namespace saturate {

struct EffectKernels {
  const char* name;
  // kSaturation, kHue or kGrey of n pixels, in place.
  void (*recolour)(const Effect& effect, uint8_t* pixels, size_t n);
  // Row y of kAffine's output for `in` [size.height, size.width, 3].
  void (*affine_row)(const float* matrix, const uint8_t* in, const ImageSize& size, int y,
                     uint8_t* out);
  // n values, the first at `in`, none of them on the border of an image of `width` pixels a row.
  void (*sharpen)(const uint8_t* in, int width, float factor, size_t n, uint8_t* out);
  // out[i] = the sum over k < taps of weight[k] * in[i + 3 * k].
  void (*blur_across)(const float* weight, int taps, const uint8_t* in, size_t n, float* out);
  // out[i] = the level of the sum over k < taps of weight[k] * rows[k][i].
  void (*blur_down)(const float* weight, int taps, const float* const* rows, size_t n,
                    uint8_t* out);
};

// The fastest version that this CPU supports.
const EffectKernels& effect_kernels();
const EffectKernels& plain_effect_kernels();
// All versions that this CPU supports, for tests; the plain one first.
std::vector<EffectKernels> all_effect_kernels();

}  // namespace saturate
