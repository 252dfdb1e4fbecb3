// Work captured once and replayed as a whole: a CUDA graph, or its equivalent in tests.
//
// A replay repeats the device's work on the same memory. Host work is not repeated, and host
// numbers keep their captured values: anything that changes between replays must be in device
// memory.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace saturate {

// Belongs to one thread.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Runs `body` on the capture stream, so that one-time set-up and choices happen before capture.
  virtual void warm_up(const std::function<void()>& body) = 0;
  // Captures the device work of `body` without running it. Throws what `body` throws, and if
  // something in it cannot be captured, such as waiting for the device: then nothing is captured.
  // At most once.
  virtual void capture(const std::function<void()>& body) = 0;
  // Replays the captured work, ordered with the current stream. Random numbers are new.
  virtual void replay() = 0;
};

// Whether this build has CUDA graphs.
bool has_cuda_graphs();
// REQUIRES: has_cuda_graphs(), a CUDA device.
std::unique_ptr<StepGraph> make_cuda_graph(const c10::Device& device);

}  // namespace saturate
