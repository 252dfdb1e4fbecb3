// The CUDA launcher of finish_pixel: one thread per pixel.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "saturate/error.h"
#include "saturate/pixel.h"

namespace saturate {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 65536;  // beyond, threads take several pixels

// in, out [pixels, 3]; pixels = count * size * size.
__global__ void finish_batch(const uint8_t* in, const uint8_t* flip, int64_t pixels, int size,
                             Normalize normalize, float* out) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pixels; i += stride) {
    const int64_t row = i / size;
    const bool mirrored = flip[row / size] != 0;
    finish_pixel(in + row * size * 3, size, static_cast<int>(i - row * size), mirrored, normalize,
                 out + i * 3);
  }
}

}  // namespace

void finish_batch_cuda(const uint8_t* in, const uint8_t* flip, int64_t count, int size,
                       const Normalize& normalize, float* out, void* stream) {
  const int64_t pixels = count * size * size;
  if (pixels == 0) return;  // an empty grid is an error to CUDA
  const int64_t blocks = std::min((pixels + kThreads - 1) / kThreads, kMaxBlocks);
  finish_batch<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      in, flip, pixels, size, normalize, out);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         "finish_batch_cuda", "Check that the GPU is free and of a supported kind (saturate env)");
}

}  // namespace saturate
