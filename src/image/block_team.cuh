// The team and the check that all launchers of kernels use.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "saturate/data/error.h"

namespace saturate {

// The threads of a block, as a team of image/effect_passes.h.
struct BlockTeam {
  __device__ int first() const { return static_cast<int>(threadIdx.x); }
  __device__ int step() const { return static_cast<int>(blockDim.x); }
  __device__ void wait() const { __syncthreads(); }
  __device__ void increment(uint32_t& counter) const { atomicAdd(&counter, 1u); }
};

// Fails with kRun if the launch before it has failed. `what`: the launcher, for the message.
inline void check_launch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail(ErrorKind::kRun, std::string("cannot launch a kernel: ") + cudaGetErrorString(status),
         what, "Check that the GPU is free and supported (saturate env)");
}

}  // namespace saturate
