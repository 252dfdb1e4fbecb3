// Lookahead: slow weights follow the trained weights, which are then reset to them (M. R. Zhang et
// al., "Lookahead Optimizer: k steps forward, 1 step back", arXiv 1907.08610).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

// The slow weights start as the initial weights. After every `lookahead_every` steps, and after a
// run's last, slow += (1 - keep) * (weights - slow), then weights = slow, where
//   keep = lookahead * (step / total steps of the run)^lookahead_power.
// With power 0 this is the paper's rule with alpha = 1 - keep; 3 is K. Jordan's in "94% on
// CIFAR-10" (arXiv 2404.00498). Weights are parameters and, as in Jordan's script, floating-point
// buffers (BatchNorm's statistics). Not for concurrent use.
class Lookahead {
 public:
  // `model` must outlive this.
  Lookahead(Model& model, const TrainOptions& options);

  // To be called before the first step, with the weights set: copies them unless load_state() ran.
  void begin();
  // To be called after step number `step` (from 1) of a run of `steps`. REQUIRES: begin(). Does not
  // wait for a device.
  void update(int64_t step, int64_t steps);

  // The slow weights by name, empty before begin(); they share storage.
  std::vector<NamedTensor> state() const;
  // Loads what state() returned. Fails with kRun naming `where` and the tensor that is missing or
  // has another shape.
  void load_state(const std::vector<NamedTensor>& state, const std::string& where);

 private:
  const TrainOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> weights_;  // the model's own
  std::vector<at::Tensor> slow_;     // empty before begin()
};

}  // namespace saturate
