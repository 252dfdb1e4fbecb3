// SPDX-License-Identifier: BSD-3-Clause
// The purpose of training: the loss of a model's outputs, how many targets of a batch count, and
// metrics. The step and the evaluation are the same for every task.
//
// Your own task defines mean_loss(), sums() and metrics(); docs/extend.md has an example.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/metrics.h"
#include "saturate/model.h"

namespace saturate {

// The correct outputs of a batch.
struct Targets {
  at::Tensor labels;      // [N, ...], on the outputs' device
  at::Tensor mixed = {};  // as `labels`, which have weight lambda; undefined without mixing
  double lambda = 1;
};

// Without state, so that one object serves training, evaluation and captured steps alike. No
// function waits for a GPU but metrics().
class Task {
 public:
  virtual ~Task() = default;

  // outputs [N, ...] of the model, float or double, and labels [N, ...] of N > 0 samples to a
  // scalar: the mean over what counts. `smoothing`: the weight of all other labels, 0 unless
  // is_cross_entropy(). Without gradients in evaluation.
  virtual at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                               double smoothing) const = 0;
  // Whether mean_loss() is torch's cross entropy, which label smoothing and compiled steps need.
  virtual bool is_cross_entropy() const { return false; }

  // How many targets of `labels` count, an integer scalar on their device; undefined if that is
  // proportional to the samples. Gives micro-batches their loss weights.
  virtual at::Tensor counted(const at::Tensor& labels) const;
  // Undoes the effect that mirroring the images has on the outputs.
  virtual at::Tensor mirrored(const at::Tensor& outputs) const { return outputs; }

  // The input of metrics(): new tensors, which may be changed, that add up over batches; the same
  // number and shapes for each batch. `loss`: the mean over the batch.
  virtual std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                                       const at::Tensor& labels) const = 0;
  // Means over `samples` samples from the sums over them; NaN if `samples` is 0, since all have
  // overflowed. Waits for the device. The caller fills in Metrics::samples and overflowed.
  virtual Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const = 0;

  // The loss to train on. With mixed labels it is the weighted mean of both losses: for cross
  // entropy, which is linear in its targets, that of soft targets.
  at::Tensor loss(const at::Tensor& outputs, const Targets& targets, double smoothing) const;
};

// A class for each sample: logits [N, classes] and labels [N] int64; cross entropy and accuracy.
// Ties between logits go to the lower class, on a GPU as in topk().
const Task& classification();
// A class for each pixel: logits [N, classes, H, W] and labels [N, H, W] int64, negative where
// ignored; cross entropy, accuracy and counts over the other pixels.
const Task& segmentation();

// The recipe's task, with the model's own loss if it has one. Valid as long as the model.
std::unique_ptr<const Task> make_task(TaskKind kind, const ModelFacets& facets);

// Sums on the tensors' device; only read() waits for it. `task` must outlive it.
class RunningMetrics {
 public:
  explicit RunningMetrics(const Task& task) : task_(&task) {}
  // `loss`: the mean over the batch. `may_overflow`: samples with a non-finite loss count as
  // Metrics::overflowed.
  void add(const at::Tensor& loss, const at::Tensor& outputs, const at::Tensor& labels,
           bool may_overflow = false);
  // Adds the counts of `other`, of the same task, which keeps them; shares no memory with it.
  void add(const RunningMetrics& other);
  // Returns the means so far, and resets the sums.
  Metrics read();

 private:
  const Task* task_;
  int64_t samples_ = 0;
  std::vector<at::Tensor> sums_;  // empty without samples
  at::Tensor overflowed_;  // samples, [] double on the tensors' device; undefined if none may
                           // overflow
};

}  // namespace saturate
