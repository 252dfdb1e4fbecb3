// Buffers of a model that several processes train.
#pragma once

#include <cstdint>
#include <vector>

#include "saturate/group.h"
#include "saturate/model.h"

namespace saturate {

// Each process's forward writes to its own buffers, of its own images; they are to be rank 0's, as
// in Python's DDP, where they are read. BatchNorm's running statistics are read by evaluation
// alone. Other buffers may be read by the next forward: from the first step on that writes to them
// they are sent before each step, once however many parts it has. A model without such buffers, or
// that leaves them as they are, pays for one exchange after the first step.
class RankBuffers {
 public:
  // Both must outlive this. REQUIRES: the buffers are rank 0's already.
  RankBuffers(Group& group, Model& model);

  // Collective, before a step; then after it, before anything else can write to them.
  void before_step();
  void after_step();
  // Whether this process's steps have written to any; what any of them answered (see Votes).
  bool written() const { return written_; }
  void set_written(bool by_any) { written_ = by_any; }
  // Collective: all buffers, before they are evaluated.
  void take_all();

 private:
  Group& group_;
  std::vector<at::Tensor> all_, read_;  // read_: by training's forward, as far as is known
  std::vector<int64_t> versions_;       // of read_, before the step
  bool written_ = false, asked_ = false;
};

}  // namespace saturate
