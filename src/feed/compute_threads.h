// The intra-op threads of torch on the CPU.
#pragma once

namespace saturate {

// at::set_num_threads(), and starts the threads in advance. If one does not start, LibTorch's own
// pool would wait for it forever, and OpenMP would abort the process: this fails with kRun before,
// naming train.threads. For the whole process; SwitchesScope (step/switches.h) restores the number.
// REQUIRES: threads > 0.
void set_compute_threads(int threads);

// The same for the OpenMP team of the calling thread.
void start_compute_threads();

}  // namespace saturate
