// Normalisation, from uint8 to float: one function for CPU and GPU. Compiled by nvcc too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define SATURATE_HOST_DEVICE __host__ __device__
#else
#define SATURATE_HOST_DEVICE
#endif

namespace saturate {

// Normalisation per channel: value * scale + shift = (value / 255 - mean) / std.
struct Normalize {
  float scale[3];
  float shift[3];
};

// The product is rounded before the sum on the GPU too, where the compiler would otherwise fuse the
// two: both devices give the same bits.
SATURATE_HOST_DEVICE inline float normalize_value(uint8_t value, float scale, float shift) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fmul_rn(static_cast<float>(value), scale), shift);
#else
  const float product = static_cast<float>(value) * scale;
  return product + shift;
#endif
}

// The nearest bfloat16, as its bits; between two, the even one. REQUIRES: value is finite.
inline uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace saturate
