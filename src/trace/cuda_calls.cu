#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include "trace/cuda_calls.h"

namespace saturate {

bool has_cuda_capture() {
  return true;
}

void begin_cuda_range(const char* name) {
  nvtxRangePushA(name);
}

void end_cuda_range() {
  nvtxRangePop();
}

void start_cuda_profiler() {
  cudaProfilerStart();
}

void stop_cuda_profiler() {
  cudaDeviceSynchronize();  // include the window's pending work
  cudaProfilerStop();
}

}  // namespace saturate
