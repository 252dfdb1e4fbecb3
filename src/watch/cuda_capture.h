// Marks and windows for profilers around a run on a GPU, such as Nsight Systems. A build without
// CUDA has none.
#pragma once

namespace saturate {

bool has_cuda_capture();

// REQUIRES, of all below: has_cuda_capture().

// NVTX ranges of the calling thread, which nest. Nearly free where nobody listens. `name` is
// copied.
void begin_cuda_range(const char* name);
void end_cuda_range();

// What `nsys profile --capture-range=cudaProfilerApi` records.
void start_cuda_profiler();
void stop_cuda_profiler();

}  // namespace saturate
