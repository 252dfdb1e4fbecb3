// SPDX-License-Identifier: BSD-3-Clause
// The size of images, and their normalisation, from uint8 to float: one function for CPU and GPU.
// Compiled by nvcc too.
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

// Pixels; 0 x 0: not set. An integer is the side of a square.
struct ImageSize {
  int height = 0, width = 0;

  SATURATE_HOST_DEVICE constexpr ImageSize(int side = 0) : height(side), width(side) {}
  SATURATE_HOST_DEVICE constexpr ImageSize(int rows, int columns) : height(rows), width(columns) {}
  SATURATE_HOST_DEVICE constexpr bool is_set() const { return height > 0 && width > 0; }
  SATURATE_HOST_DEVICE constexpr bool is_square() const { return height == width; }
  SATURATE_HOST_DEVICE constexpr int shorter() const { return height < width ? height : width; }
  SATURATE_HOST_DEVICE constexpr int longer() const { return height < width ? width : height; }
  SATURATE_HOST_DEVICE constexpr int area() const { return height * width; }
  bool operator==(const ImageSize&) const = default;
};

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

// The bits of a float, and the reverse.
SATURATE_HOST_DEVICE inline uint32_t bits_of_float(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}
SATURATE_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// The bits of the nearest bfloat16, rounding halves to even. REQUIRES: value is a number.
SATURATE_HOST_DEVICE inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of_float(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The bits of the nearest fp16 (IEEE binary16), rounding halves to even; from 65520 on infinity.
// REQUIRES: value is a number.
SATURATE_HOST_DEVICE inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
  uint32_t size = bits & 0x7fffffff;
  // Below 2^-14 fp16 has steps of 2^-24, like floats from 0.5 to 1.
  if (size < 0x38800000)
    return static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000));
  if (size > 0x47800000) size = 0x47800000;  // 65536
  size += 0xfff + (size >> 13 & 1);
  return static_cast<uint16_t>(sign | ((size - 0x38000000) >> 13));
}

}  // namespace saturate
