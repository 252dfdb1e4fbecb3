// Decisions that the processes of a run make together, between two steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "saturate/group.h"

namespace saturate {

// A process asks for these after a step; combined, any process does.
struct Votes {
  bool stop = false;        // a signal came
  bool observer = false;    // ObserverContext::stop()
  bool time_is_up = false;  // train.max_minutes
  bool save = false;        // of rank 0 alone: a save is due by its clock, or was put off
  bool buffers = false;     // its steps write to buffers: see RankBuffers
};

// Costs no time of its own: the question goes out before a step, the answer is there after it.
class Agreement {
 public:
  // `group` may be null, and then neither of the following is called.
  explicit Agreement(Group* group) : group_(group) {}
  void begin(const Votes& own);
  Votes end();

 private:
  Group* const group_;
  at::Tensor flags_;  // [5] int
  std::function<void()> wait_;
};

}  // namespace saturate
