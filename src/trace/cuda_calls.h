// The functions that need CUDA's headers.
#pragma once

namespace saturate {

// Limits torch to this share of the device's memory. Fails with kUsage in a build without CUDA.
void limit_cuda_memory(int device, double share);

// Ranges and capture windows for profilers of a GPU, such as Nsight Systems. A build without CUDA
// has none: the functions below REQUIRE has_cuda_capture().
bool has_cuda_capture();

// Nested NVTX ranges of the calling thread. Nearly free without a profiler. `name` is copied.
void begin_cuda_range(const char* name);
void end_cuda_range();

// The window that `nsys profile --capture-range=cudaProfilerApi` records.
void start_cuda_profiler();
void stop_cuda_profiler();

}  // namespace saturate
