// The CUDA launcher of finish_batch_cpu's passes: each image has its own block, or several if the
// batch is small, so that passes wait only for their own image, and images with few effects do not
// wait for those with many.
#include <cuda_runtime.h>

#include <string>

#include "image/finish_passes.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kThreads = 512;

struct BlockTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
  __device__ void wait() const { __syncthreads(); }
  __device__ void increment(uint32_t& counter) const { atomicAdd(&counter, 1u); }
};

__global__ void __launch_bounds__(kThreads)
    finish_images(const __grid_constant__ FinishArguments batch, int parts) {
  __shared__ FinishState state;
  BlockTeam team;
  const auto part = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts));
  finish_image(team, batch, blockIdx.x / static_cast<unsigned>(parts), part, parts, state);
}

}  // namespace

void finish_batch_cuda(const FinishArguments& batch, void* stream) {
  if (batch.count == 0) return;  // CUDA refuses an empty grid
  const int parts = finish_parts(batch.count, batch.size);
  finish_images<<<static_cast<unsigned>(batch.count * parts), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(batch, parts);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         "finish_batch_cuda", "Check that the GPU is free and supported (saturate env)");
}

}  // namespace saturate
