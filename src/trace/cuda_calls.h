// The functions that need CUDA's headers.
#pragma once

namespace saturate {

// Whether this build has CUDA. The functions below REQUIRE it, except limit_cuda_memory(), which
// fails with kUsage without, and cuda_memory_share(), which is 1 then.
bool is_cuda_build();

// Limits torch to this share of the device's memory.
void limit_cuda_memory(int device, double share);
// The limit in force; 1: none.
double cuda_memory_share(int device);

// Ranges and capture windows for profilers of a GPU, such as Nsight Systems.

// Nested NVTX ranges of the calling thread. Nearly free without a profiler. `name` is copied.
void begin_cuda_range(const char* name);
void end_cuda_range();

// The window that `nsys profile --capture-range=cudaProfilerApi` records.
void start_cuda_profiler();
void stop_cuda_profiler();

}  // namespace saturate
