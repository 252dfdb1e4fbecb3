// The last stretch of a sample, from uint8 to normalised float: one pixel function, run by a CPU
// launcher and a CUDA launcher. Compiled by nvcc too.
#pragma once

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

// Pixel `x` of a row of `size` pixels: mirrored where `flip`, normalised. `in` [size, 3], `out`
// [3].
SATURATE_HOST_DEVICE inline void finish_pixel(const uint8_t* in, int size, int x, bool flip,
                                              const Normalize& normalize, float* out) {
  const uint8_t* from = in + static_cast<ptrdiff_t>(flip ? size - 1 - x : x) * 3;
  for (int c = 0; c < 3; ++c)
    out[c] = normalize_value(from[c], normalize.scale[c], normalize.shift[c]);
}

// Mirrors the images whose byte in `flip` is not 0 and normalises: in [count, size, size, 3] uint8,
// flip [count], out [count, size, size, 3] float (NHWC, torch's channels_last). No overlap.
void finish_batch_cpu(const uint8_t* in, const uint8_t* flip, int64_t count, int size,
                      const Normalize& normalize, float* out);

// The same with all pointers on the current device. Enqueues on `stream` (a cudaStream_t) and
// returns; the caller keeps the buffers alive and unchanged until the stream has passed. Fails with
// kRun where the launch is refused. Defined in saturate_kernels, which a build without nvcc lacks.
void finish_batch_cuda(const uint8_t* in, const uint8_t* flip, int64_t count, int size,
                       const Normalize& normalize, float* out, void* stream);

}  // namespace saturate
