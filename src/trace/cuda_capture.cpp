// Replaces cuda_capture.cu in a build without CUDA.
#include "trace/cuda_capture.h"

#ifndef SATURATE_HAS_CUDA

namespace saturate {

bool has_cuda_capture() {
  return false;
}
void begin_cuda_range(const char*) {}
void end_cuda_range() {}
void start_cuda_profiler() {}
void stop_cuda_profiler() {}

}  // namespace saturate

#endif
