// Weights that follow the trained ones: their average over a run, which often evaluates better, and
// Lookahead's slow weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

// train.ema: after every step, average += (1 - ema) * (parameter - average); the first update
// copies. Equals torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(ema). Buffers
// (BatchNorm's statistics) are not averaged: the model's own are used.
//
// train.swa: from that share of the run on, the mean of parameters and buffers at the ends of
// epochs and of the run; integer buffers are copied. Equals AveragedModel with
// get_swa_multi_avg_fn() and use_buffers=True. From https://arxiv.org/abs/1803.05407, which
// computes the statistics in a pass over the training data instead.
//
// Not for concurrent use.
class WeightAverage {
 public:
  static bool is_wanted(const TrainOptions& options) { return options.ema > 0 || options.swa > 0; }

  // `model` must outlive this.
  WeightAverage(Model& model, const TrainOptions& options);

  // To be asked after each step, number `step` of `steps` from 1, and again with `ends_epoch` once
  // an epoch or the run has ended with it: whether an update is due.
  bool is_due(int64_t step, int64_t steps, bool ends_epoch) const;
  // Whether buffers are averaged too: then they must be equal on all ranks before an update.
  bool has_buffers() const { return tensors_.size() > parameters_; }
  // One fused operation over all tensors; does not wait for a device.
  void update();
  bool empty() const { return averages_.empty(); }  // before the first update
  // Bytes of state() after an update.
  int64_t bytes() const;

  // Gives the model the averaged tensors for good. To be called last.
  void keep() { swap(); }

  // During its lifetime, the model computes with the averaged tensors. Null, and an average
  // without updates, do nothing.
  class Scope {
   public:
    explicit Scope(WeightAverage* average);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WeightAverage* average_;
  };

  // The averaged tensors by name, empty before the first update; they share storage.
  std::vector<NamedTensor> state() const;
  // Loads what state() returned. Fails with kRun naming `where` if it is of the other kind of
  // average, and then also the tensor that is missing or has another shape.
  void load_state(const std::vector<NamedTensor>& state, const std::string& where);

 private:
  void swap();

  const TrainOptions options_;
  std::vector<NamedTensor> tensors_;  // the model's own
  size_t parameters_ = 0;             // the first ones of tensors_
  std::vector<at::Tensor> averages_;  // empty before the first update
  int64_t averaged_ = 0;              // updates so far, with train.swa
};

// Lookahead: slow weights follow the trained weights, which are then reset to them (M. R. Zhang et
// al., "Lookahead Optimizer: k steps forward, 1 step back", arXiv 1907.08610). They start as the
// initial weights. After every `lookahead_every` steps, and after a run's last, slow += (1 - keep)
// * (weights - slow), then weights = slow, where
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
  std::vector<NamedTensor> weights_;  // the model's own
  std::vector<at::Tensor> slow_;      // empty before begin()
};

}  // namespace saturate
