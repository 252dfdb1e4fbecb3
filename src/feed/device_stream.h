// A device's streams as saturate::Stream, through c10's interface: the same for all device types,
// so it compiles without CUDA. And the intra-op threads of torch on the CPU.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "saturate/data/stream.h"

namespace saturate {

// A stream of the device's pool, independent of all others. REQUIRES: the device has streams, like
// CUDA.
std::unique_ptr<Stream> make_device_stream(const std::string& name, const c10::Device& device,
                                           StreamChecker* checker);
// The calling thread's current stream at each use; on the CPU the host's stream.
std::unique_ptr<Stream> make_current_stream(const std::string& name, const c10::Device& device,
                                            StreamChecker* checker);

// at::set_num_threads(), and starts the threads in advance. If one does not start, LibTorch's own
// pool would wait for it forever, and OpenMP would abort the process: this fails with kRun before,
// naming train.threads. For the whole process; SwitchesScope (step/switches.h) restores the number.
// REQUIRES: threads > 0.
void set_compute_threads(int threads);

// The same for the OpenMP team of the calling thread.
void start_compute_threads();

}  // namespace saturate
