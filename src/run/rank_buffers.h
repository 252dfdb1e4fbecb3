// Separate state of each rank in a model that several ranks train: buffers and random numbers.
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

// The seed of torch's random numbers: different for each rank, and after each resume, so that
// dropout's masks differ.
uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step);

// States of the CPU's and the device's generator by name: "cpu", and "cpu.1" of rank 1. Collective
// if `group` is not null.
std::vector<NamedTensor> random_states(Group* group, const at::Device& device);
// Restores this rank's of the states that random_states() returned; a rank that the saved run did
// not have begins with seed_of_rank().
void load_random_states(const std::vector<NamedTensor>& states, Group* group,
                        const at::Device& device, uint64_t seed, int64_t step);

}  // namespace saturate
