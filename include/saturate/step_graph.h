// Work recorded once and then run again as a whole: a CUDA graph, and a twin of it for the CPU.
//
// What is run again is what the device did, on the memory that it did it on. What the host did
// meanwhile is not repeated, and numbers that it passed along stay what they were: whatever changes
// from one time to the next must lie in the device's memory.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace saturate {

// Belongs to one thread.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Runs `body` where it will be recorded, so that what is set up or chosen at its first runs is
  // there by then.
  virtual void warm_up(const std::function<void()>& body) = 0;
  // Records what `body` has the device do, without doing it. Throws what `body` throws, and where
  // something in it cannot be recorded, such as waiting for the device: then nothing is recorded.
  // Once at most.
  virtual void capture(const std::function<void()>& body) = 0;
  // Does what was recorded, in order with the current stream. Random numbers are new ones.
  virtual void replay() = 0;
};

// Whether this build has CUDA's.
bool has_cuda_graphs();
// REQUIRES: has_cuda_graphs(), a CUDA device.
std::unique_ptr<StepGraph> make_cuda_graph(const c10::Device& device);
// For the CPU, and for tests: keeps `body`, and runs it. Host code is repeated here, so whoever
// records must not give it the host's numbers.
std::unique_ptr<StepGraph> make_closure_graph();

}  // namespace saturate
