// Buffers of a model that several ranks train.
#pragma once

#include <cstdint>
#include <vector>

#include "saturate/group.h"
#include "saturate/model.h"

namespace saturate {

// Each rank's forward writes to its buffers, from its images; readers must find rank 0's values, as
// in Python's DDP. Only evaluation reads BatchNorm's running statistics. The next
// forward may read other buffers: from the first step on that writes to them they are broadcast
// once before each step. A model that does not write to them costs one all-reduce after the first
// step.
class RankBuffers {
 public:
  // Both must outlive this. REQUIRES: the buffers are rank 0's already.
  RankBuffers(Group& group, Model& model);

  // Collective, before a step; then after it, before anything else can write to them.
  void before_step();
  void after_step();
  // Whether this rank's steps have written to any; set_written(): whether any rank's have (Votes).
  bool written() const { return written_; }
  void set_written(bool by_any) { written_ = by_any; }
  // Collective: all buffers, before they are evaluated.
  void take_all();

 private:
  Group& group_;
  std::vector<at::Tensor> all_, read_;  // read_: those that training's forward may read
  std::vector<int64_t> versions_;       // of read_, before the step
  bool written_ = false, asked_ = false;
};

}  // namespace saturate
