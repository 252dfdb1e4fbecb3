// The CUDA launcher of unpack_jpegs_cpu's passes: a block decodes one image after another, so that
// no more images need scratch memory than blocks can run at a time.
#include <cuda_runtime.h>

#include <string>

#include "image/unpack_passes.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocksAtATime = 4;  // on each multiprocessor, which bounds the registers

struct UnpackTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
  __device__ void wait() const { __syncthreads(); }
  __device__ void increment(uint32_t& counter) const { atomicAdd(&counter, 1u); }
};

__global__ void __launch_bounds__(kThreads, kBlocksAtATime)
    unpack_images(const __grid_constant__ UnpackArguments batch) {
  __shared__ UnpackState state;
  const UnpackTeam team;
  uint8_t* const scratch = batch.scratch + blockIdx.x * unpack_scratch_bytes(batch.size);
  for (int64_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
    unpack_image(team, batch, i, scratch, state);
    team.wait();
  }
}

}  // namespace

void unpack_jpegs_cuda(const UnpackArguments& batch, void* stream) {
  if (batch.count == 0) return;  // CUDA refuses an empty grid
  unpack_images<<<static_cast<unsigned>(unpack_teams(batch.count)), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(batch);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         "unpack_jpegs_cuda", "Check that the GPU is free and supported (saturate env)");
}

}  // namespace saturate
