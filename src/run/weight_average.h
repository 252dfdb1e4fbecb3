// An exponential moving average of a model's parameters (EMA), which often evaluates better than
// the parameters themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "saturate/model.h"

namespace saturate {

// After every step, average += (1 - decay) * (parameter - average); the first update copies. Equals
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay). Buffers (BatchNorm's
// statistics) are not averaged: the model's own are used. Not for concurrent use.
class WeightAverage {
 public:
  // `model` must outlive this.
  WeightAverage(Model& model, double decay);

  // One fused operation over all parameters; does not wait for a device.
  void update();

  // Gives the model the averaged parameters for good. To be called last.
  void keep() { swap(); }

  // During its lifetime, the model computes with the averaged parameters. Null, and an average
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

  // The averaged parameters by name, empty before the first update; they share storage.
  std::vector<NamedTensor> state() const;
  // Loads what state() returned. Fails with kRun naming `where` and the tensor that is missing or
  // has another shape.
  void load_state(const std::vector<NamedTensor>& state, const std::string& where);

 private:
  void swap();

  const double decay_;
  std::vector<NamedTensor> parameters_;  // the model's own
  std::vector<at::Tensor> averages_;     // empty before the first update
};

}  // namespace saturate
