#include "trace/cuda_memory.h"

#include "saturate/data/error.h"

#ifdef SATURATE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace saturate {

void limit_cuda_memory([[maybe_unused]] c10::DeviceIndex device, [[maybe_unused]] double share) {
#ifdef SATURATE_HAS_CUDA
  // The virtual function also links in a build without the full LibTorch.
  auto* allocator = c10::getDeviceAllocator(c10::kCUDA);
  static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(allocator)->setMemoryFraction(
      share, device);
#else
  fail(ErrorKind::kUsage, "this build cannot limit a GPU's memory", "train.memory_gb",
       "Leave it out, or build with CUDA (SATURATE_CUDA=ON)");
#endif
}

}  // namespace saturate
