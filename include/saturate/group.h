// SPDX-License-Identifier: BSD-3-Clause
// Communication between processes that train together: rendezvous and collectives.
//
// All calls except purely local ones are collective: all ranks make the same calls in the same
// order. Each returns when all have made it, or fails with kRun, naming the first failure if known,
// when a rank has ended or does not respond within distributed.timeout_s.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/data/world.h"

namespace c10d {
class ProcessGroup;
}

namespace saturate {

// Belongs to one thread.
class Group {
 public:
  // Waits for all of `world`. Rank 0 listens only at world.master (unless a store does already),
  // until its process ends; the others connect to it, then to each other, through this machine's
  // address on the route there. On a GPU, `device` is this process's own. All ranks make their
  // groups of one world in the same order; once one is started anew, all need another
  // World::attempt. REQUIRES: world.size > 1.
  Group(const World& world, const DistributedOptions& options, const at::Device& device);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return world_.rank; }
  int world() const { return world_.size; }
  // The device of this process's tensors.
  at::Device device() const { return device_; }
  // "rank 1 of 4"
  std::string name() const;
  // The backend for tensors on `device`: "gloo", "shm" (shared memory, and gloo for the rest) or
  // "nccl".
  std::string backend_on(const at::Device& device) const;

  // Broadcasts rank 0's tensors, in place.
  void broadcast(const std::vector<at::Tensor>& tensors);
  // Broadcasts one tensor from rank `from`, in place.
  void broadcast(const at::Tensor& tensor, int from);
  // All-reduces by sum, or by maximum, in place.
  void sum(const at::Tensor& tensor);
  void max(const at::Tensor& tensor);
  // The same without waiting: the tensor holds the result after calling the returned function.
  std::function<void()> start_max(const at::Tensor& tensor);
  // The rows [n] of all ranks' tensors of one shape, as [world, n].
  at::Tensor gather(const at::Tensor& row);
  // Rank 0's text, and every rank's.
  std::string text_of_first(const std::string& own);
  std::vector<std::string> texts(const std::string& own);
  bool any(bool own);
  // Broadcasts rank 0's value.
  bool first_says(bool own);

  // Fails with kUsage on every rank unless `text` is the same on all, naming the ranks that differ
  // from rank 0, and the lowest one's first differing line. `what` names it, as "recipe".
  void require_same(const std::string& what, const std::string& text);

  // Tells the other ranks why this one ends, once they notice. Not collective.
  void report_failure(const std::string& message) noexcept;
  // Runs `body`, which communicates by other means, and converts its failures to this class's.
  // `doing` describes it, as "summing gradients".
  void guard(const char* doing, const std::function<void()>& body);

  c10d::ProcessGroup& handle();

 private:
  struct State;
  const World world_;
  const at::Device device_;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
