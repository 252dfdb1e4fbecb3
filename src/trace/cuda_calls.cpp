#include "trace/cuda_calls.h"

#include "saturate/data/error.h"

#ifdef SATURATE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace saturate {

void limit_cuda_memory([[maybe_unused]] int device, [[maybe_unused]] double share) {
#ifdef SATURATE_HAS_CUDA
  // The virtual function also links in a build without the full LibTorch.
  auto* allocator = c10::getDeviceAllocator(c10::kCUDA);
  static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(allocator)->setMemoryFraction(
      share, static_cast<c10::DeviceIndex>(device));
#else
  fail(ErrorKind::kUsage, "this build cannot limit a GPU's memory", "train.memory_gb",
       "Leave it out, or build with CUDA (SATURATE_CUDA=ON)");
#endif
}

#ifndef SATURATE_HAS_CUDA  // with CUDA they are in cuda_calls.cu
bool has_cuda_capture() {
  return false;
}
void begin_cuda_range(const char*) {}
void end_cuda_range() {}
void start_cuda_profiler() {}
void stop_cuda_profiler() {}
#endif

}  // namespace saturate
