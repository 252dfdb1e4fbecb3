// The CUDA launchers of the passes of a language model's loss: a block for each row.
#include "image/block_team.cuh"
#include "task/token_passes.h"

namespace saturate {
namespace {

// On each multiprocessor, which bounds the registers. Turing's has 1,024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksAtATime = 2;
#else
constexpr int kBlocksAtATime = 3;
#endif

__global__ void __launch_bounds__(kTokenThreads, kBlocksAtATime)
    sum_tokens(const __grid_constant__ TokenRows rows, const __grid_constant__ TokenSums to) {
  __shared__ TokenState state;
  sum_row(BlockTeam(), rows, blockIdx.x, to, state);
}

__global__ void __launch_bounds__(kTokenThreads, kBlocksAtATime)
    token_gradient(const __grid_constant__ TokenRows rows, const __grid_constant__ TokenSums from,
                   const float* factors, void* gradient) {
  row_gradient(BlockTeam(), rows, blockIdx.x, from, factors[blockIdx.x], gradient);
}

// So many that each makes about one access to a short row.
unsigned threads_for(const TokenRows& rows) {
  unsigned threads = 32;
  while (threads < kTokenThreads && static_cast<int>(threads) * 8 < rows.classes) threads *= 2;
  return threads;
}

}  // namespace

void token_sums_cuda(const TokenRows& rows, const TokenSums& to, void* stream) {
  if (rows.count == 0) return;  // CUDA refuses an empty grid
  sum_tokens<<<static_cast<unsigned>(rows.count), threads_for(rows), 0,
               static_cast<cudaStream_t>(stream)>>>(rows, to);
  check_launch("token_sums_cuda");
}

void token_gradient_cuda(const TokenRows& rows, const TokenSums& from, const float* factors,
                         void* gradient, void* stream) {
  if (rows.count == 0) return;
  token_gradient<<<static_cast<unsigned>(rows.count), threads_for(rows), 0,
                   static_cast<cudaStream_t>(stream)>>>(rows, from, factors, gradient);
  check_launch("token_gradient_cuda");
}

}  // namespace saturate
