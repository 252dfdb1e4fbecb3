// Processes that train together: how they find each other, and what they say to each other.
//
// Every call but those that only tell of this process is collective: all ranks make the same calls
// in the same order, and each returns when all have made it, or fails with kRun, naming who failed
// first where that is known, when one is gone or does not come within distributed.timeout_s.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/distributed_options.h"
#include "saturate/world.h"

namespace c10d {
class ProcessGroup;
}

namespace saturate {

// Belongs to one thread.
class Group {
 public:
  // Waits for all of `world`. Rank 0 listens at world.master, and there alone (unless a store does
  // already); the others connect to it, then each to each, by the address of this machine
  // that leads there. On a GPU, `device` is this process's own. REQUIRES: world.size > 1.
  Group(const World& world, const DistributedOptions& options, const at::Device& device);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return world_.rank; }
  int world() const { return world_.size; }
  // Where this process's tensors are.
  at::Device device() const { return device_; }
  // "rank 1 of 4"
  std::string name() const;
  // What carries tensors on `device`: "gloo", "shm" (shared memory, and gloo for the rest) or
  // "nccl".
  std::string backend_on(const at::Device& device) const;

  // Makes the tensors those of rank 0, in place.
  void broadcast(const std::vector<at::Tensor>& tensors);
  // Makes one tensor that of rank `from`, in place.
  void broadcast(const at::Tensor& tensor, int from);
  // Sums over the ranks, or takes the largest, in place.
  void sum(const at::Tensor& tensor);
  void max(const at::Tensor& tensor);
  // The same without waiting: the tensor holds the result once the function given back has been
  // called.
  std::function<void()> start_max(const at::Tensor& tensor);
  // The rows [n] of all ranks' tensors of one shape, as [world, n].
  at::Tensor gather(const at::Tensor& row);
  // Rank 0's text, and every rank's.
  std::string text_of_first(const std::string& own);
  std::vector<std::string> texts(const std::string& own);
  bool any(bool own);
  // What rank 0 says.
  bool first_says(bool own);

  // Fails with kUsage on every rank, naming those that differ from rank 0 and the first line in
  // which the lowest of them does, unless `text` is the same on all. `what` names it, as "recipe".
  void require_same(const std::string& what, const std::string& text);

  // Tells the others, once they miss this rank, why it ended. Not collective.
  void report_failure(const std::string& message) noexcept;
  // Runs what communicates by other means, and turns its failures into this class's. `doing` says
  // what, as "summing gradients".
  void guard(const char* doing, const std::function<void()>& body);

  c10d::ProcessGroup& handle();

 private:
  struct State;
  const World world_;
  const at::Device device_;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
