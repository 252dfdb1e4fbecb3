// The CUDA launchers of the passes of a language model's loss: a block for each row.
#include <cuda_runtime.h>

#include <string>

#include "saturate/data/error.h"
#include "task/token_passes.h"

namespace saturate {
namespace {

constexpr int kBlocksAtATime = 3;  // on each multiprocessor, which bounds the registers

struct TokenTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
  __device__ void wait() const { __syncthreads(); }
  __device__ void increment(uint32_t& counter) const { atomicAdd(&counter, 1u); }
};

__global__ void __launch_bounds__(kTokenThreads, kBlocksAtATime)
    sum_tokens(const __grid_constant__ TokenRows rows, const __grid_constant__ TokenSums to) {
  __shared__ TokenState state;
  sum_row(TokenTeam(), rows, blockIdx.x, to, state);
}

__global__ void __launch_bounds__(kTokenThreads, kBlocksAtATime)
    token_gradient(const __grid_constant__ TokenRows rows, const __grid_constant__ TokenSums from,
                   const float* factors, void* gradient) {
  row_gradient(TokenTeam(), rows, blockIdx.x, from, factors[blockIdx.x], gradient);
}

// So many that each makes about one access to a short row.
unsigned threads_for(const TokenRows& rows) {
  unsigned threads = 32;
  while (threads < kTokenThreads && static_cast<int>(threads) * 8 < rows.classes) threads *= 2;
  return threads;
}

void check_launch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         what, "Check that the GPU is free and supported (saturate env)");
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
