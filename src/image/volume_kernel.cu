// The CUDA launcher of transform_volumes_cpu's passes: each thread computes voxels of one volume.
#include <cuda_runtime.h>

#include <string>

#include "image/volume_passes.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kThreads = 256;

struct VoxelTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
};

__global__ void __launch_bounds__(kThreads)
    transform_volumes(const __grid_constant__ VolumeArguments batch, int parts) {
  const auto part = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts));
  transform_volume(VoxelTeam(), batch, blockIdx.x / static_cast<unsigned>(parts), part, parts);
}

}  // namespace

void transform_volumes_cuda(const VolumeArguments& batch, void* stream) {
  if (batch.count == 0) return;  // CUDA refuses an empty grid
  const int parts = volume_parts(batch, kThreads);
  transform_volumes<<<static_cast<unsigned>(batch.count * parts), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(batch, parts);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         "transform_volumes_cuda", "Check that the GPU is free and supported (saturate env)");
}

}  // namespace saturate
