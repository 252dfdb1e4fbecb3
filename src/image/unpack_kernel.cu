// The CUDA launcher of unpack_jpegs_cpu's passes: a block decodes one image after another, so that
// no more images need scratch memory than blocks can run at a time.
#include "image/block_team.cuh"
#include "image/unpack_passes.h"

namespace saturate {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocksAtATime = 4;  // on each multiprocessor, which bounds the registers

__global__ void __launch_bounds__(kThreads, kBlocksAtATime)
    unpack_images(const __grid_constant__ UnpackArguments batch) {
  __shared__ UnpackState state;
  const BlockTeam team;
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
  check_launch("unpack_jpegs_cuda");
}

}  // namespace saturate
