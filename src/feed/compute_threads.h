// The threads within torch's operators on the CPU.
#pragma once

namespace saturate {

// at::set_num_threads(), and starts the threads before they are needed. Where one does not start,
// LibTorch's own pool would wait for it for ever, and OpenMP's would end the process with a line of
// its own: this fails with kRun before, naming train.threads. REQUIRES: threads > 0.
void set_compute_threads(int threads);

// Starts OpenMP's threads of the calling thread, which has a team of its own, likewise.
void start_compute_threads();

}  // namespace saturate
