// The CUDA launcher of finish_batch_cpu's passes: one block an image, so that the passes of an
// image wait for each other alone, and images of few effects do not wait for those of many.
#include <cuda_runtime.h>

#include <string>

#include "image/effect_passes.h"
#include "saturate/error.h"

namespace saturate {
namespace {

constexpr int kThreads = 512;

struct BlockTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
  __device__ void wait() const { __syncthreads(); }
  __device__ void increment(uint32_t& counter) const { atomicAdd(&counter, 1u); }
};

__global__ void finish_images(FinishBatch batch) {
  __shared__ EffectState state;
  BlockTeam team;
  finish_image(team, batch, blockIdx.x, state);
}

}  // namespace

void finish_batch_cuda(const FinishBatch& batch, void* stream) {
  if (batch.count == 0) return;  // an empty grid is an error to CUDA
  finish_images<<<static_cast<unsigned>(batch.count), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(batch);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         "finish_batch_cuda", "Check that the GPU is free and of a supported kind (saturate env)");
}

}  // namespace saturate
