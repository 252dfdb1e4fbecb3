// The CUDA launcher of transform_volumes_cpu's passes: each thread computes voxels of one volume.
#include "image/block_team.cuh"
#include "image/volume_passes.h"

namespace saturate {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    transform_volumes(const __grid_constant__ VolumeArguments batch, int parts) {
  const auto part = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts));
  transform_volume(BlockTeam(), batch, blockIdx.x / static_cast<unsigned>(parts), part, parts);
}

}  // namespace

void transform_volumes_cuda(const VolumeArguments& batch, void* stream) {
  if (batch.count == 0) return;  // CUDA refuses an empty grid
  const int parts = volume_parts(batch, kThreads);
  transform_volumes<<<static_cast<unsigned>(batch.count * parts), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(batch, parts);
  check_launch("transform_volumes_cuda");
}

}  // namespace saturate
