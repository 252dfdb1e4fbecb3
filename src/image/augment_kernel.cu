// The CUDA launcher of finish_batch_cpu's passes: each image has its own block, or several if the
// batch is small, so that passes wait only for their own image, and images with few effects do not
// wait for those with many.
#include "image/block_team.cuh"
#include "image/finish_passes.h"

namespace saturate {
namespace {

constexpr int kThreads = 512;

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
  check_launch("finish_batch_cuda");
}

}  // namespace saturate
