#include "trace/cuda_calls.h"

#ifdef SATURATE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#else
#include "saturate/data/error.h"
#endif

namespace saturate {

#ifdef SATURATE_HAS_CUDA

namespace {

// Its virtual functions also link in a build without the full LibTorch.
c10::cuda::CUDACachingAllocator::CUDAAllocator& cuda_allocator() {
  return *static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(
      c10::getDeviceAllocator(c10::kCUDA));
}

}  // namespace

void limit_cuda_memory(int device, double share) {
  cuda_allocator().setMemoryFraction(share, static_cast<c10::DeviceIndex>(device));
}

double cuda_memory_share(int device) {
  // Some of torch's allocators have a limit beyond all memory for none.
  return std::min(1.0, cuda_allocator().getMemoryFraction(static_cast<c10::DeviceIndex>(device)));
}

bool is_cuda_build() {
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

#else

void limit_cuda_memory(int, double) {
  fail(ErrorKind::kUsage, "this build cannot limit a GPU's memory", "train.memory_gb",
       "Remove it, or build with CUDA (SATURATE_CUDA=ON)");
}
double cuda_memory_share(int) {
  return 1;
}
bool is_cuda_build() {
  return false;
}
void begin_cuda_range(const char*) {}
void end_cuda_range() {}
void start_cuda_profiler() {}
void stop_cuda_profiler() {}

#endif

}  // namespace saturate
