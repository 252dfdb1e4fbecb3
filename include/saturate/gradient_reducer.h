// SPDX-License-Identifier: BSD-3-Clause
// Distributed data parallel training: gradients are all-reduced during backward.
//
// Uses torch's c10d::Reducer, like Python's DistributedDataParallel. Gradients are views of
// buckets; a bucket's all-reduce starts as soon as backward has filled it. Gradients are summed,
// not averaged: each process multiplies its loss by its share of the global batch, so that the sum
// is the gradient of the mean over all images, however unevenly they are distributed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "saturate/group.h"
#include "saturate/model.h"

namespace c10d {
class Reducer;
}

namespace saturate {

// Belongs to one thread. During its lifetime, gradients may be reset to none or zeroed in place,
// but the parameters must not move.
class GradientReducer {
 public:
  // For the parameters that require a gradient; `group` must outlive this. Collective.
  GradientReducer(Group& group, const std::vector<NamedTensor>& parameters,
                  const DistributedOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // False: nothing is all-reduced from now on, and gradients stay local, to measure the cost of
  // all-reduce. All processes must change it before the same step.
  void set_enabled(bool enabled) { enabled_ = enabled; }

  // To be called before a forward whose backward() reduces, and before sum().
  void before_forward();
  // loss.backward(). With `reduce`, the gradients, including those of earlier backwards, are
  // all-reduced at the end; else this process's gradients are only accumulated. `waiting` is called
  // when only waiting for other processes is left, if that happens on the calling thread.
  // Collective with `reduce`: all processes must call it, one without images with a zero loss: with
  // zero_loss() or, with distributed.find_unused, the sum of the model's outputs for the empty
  // batch. Fails with kUsage if the loss requires no gradient, before anything is sent, and, naming
  // the parameters without a gradient, unless distributed.find_unused.
  void backward(const at::Tensor& loss, bool reduce, const std::function<void()>& waiting = {});
  // The sum of a number, a scalar, over all processes: [] double on its device. Collective; without
  // communication while set_enabled(false).
  at::Tensor total(const at::Tensor& own);
  // A zero connected to every parameter, including those of a loss; with distributed.find_unused a
  // plain 0, since a parameter that is unused on all processes must stay unchanged. It then
  // requires no gradient: add it to a loss that does.
  at::Tensor zero_loss() const;
  // Like backward(loss, true), for existing gradients: adds each of `gradients` to that of the
  // corresponding parameter, and all-reduces. `parameters` must be all that require a gradient.
  void sum(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients);

 private:
  void run_backward(const std::vector<at::Tensor>& searched, const std::function<void()>& waiting,
                    const std::function<void()>& backward);
  void note_sent();
  std::string without_gradient() const;

  Group& group_;
  const bool find_unused_;
  bool enabled_ = true;
  std::vector<NamedTensor> parameters_;
  std::vector<std::pair<at::Tensor, unsigned>> stride_hooks_;  // parameters, and what to remove
  // During a backward: whether all buckets are sent, its thread, and the caller's `waiting`.
  bool all_sent_ = false;
  std::thread::id caller_;
  const std::function<void()>* waiting_ = nullptr;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace saturate
