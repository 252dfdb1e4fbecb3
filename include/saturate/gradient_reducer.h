// Distributed data parallel training: gradients summed over processes while backward goes on.
//
// torch's own c10d::Reducer, which Python's DistributedDataParallel wraps too. Gradients live in
// buckets, of which each parameter's gradient is a view; a bucket is sent as soon as backward has
// filled it. Gradients are summed, not averaged: each process weighs its loss by its share of the
// step's images, so that the sum is the gradient of the mean over all of them, however unevenly
// they are spread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "saturate/group.h"
#include "saturate/model.h"

namespace saturate {

// Belongs to one thread. While it lives, gradients may be reset to none or zeroed in place, but the
// parameters must stay where they are.
class GradientReducer {
 public:
  // Of those parameters that require a gradient; `group` must outlive this. Collective.
  GradientReducer(Group& group, const std::vector<NamedTensor>& parameters,
                  const DistributedOptions& options);
  ~GradientReducer();

  // False: from now on nothing is summed, and gradients stay each process's own, to measure what
  // the sums cost. All processes change it before the same step.
  void set_enabled(bool enabled);

  // Before a forward whose backward() is to reduce, and before sum().
  void before_forward();
  // loss.backward(). Where `reduce`, it ends with the sums over all processes in the gradients,
  // what earlier backwards left there included; else with this process's own gradients added
  // to what is there. `waiting` is called where nothing is left but to wait for other processes,
  // if that happens on the calling thread. Collective where `reduce`: all processes must come to
  // it, one without images by a loss that is zero, such as zero_loss() is. Fails with kUsage naming
  // the parameters that got no gradient, unless distributed.find_unused.
  void backward(const at::Tensor& loss, bool reduce, const std::function<void()>& waiting = {});
  // 0, which every parameter has a part in, those of a loss too; with distributed.find_unused a
  // mere 0, since a parameter that took part nowhere is to stay as it is.
  at::Tensor zero_loss() const;
  // As backward(loss, true), of gradients that are there already: adds each of `gradients` to that
  // of the parameter at its place, and sums. Together they are all parameters that require a
  // gradient.
  void sum(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
