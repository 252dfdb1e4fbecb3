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

// A metric that a task reports.
struct MetricName {
  std::string name;
  bool higher_is_better = true;
  bool in_training = true;  // and not only in evaluations
  double without = 0;       // its value in evaluations that do not compute it
};

// Without state, so that one object serves training, evaluation and captured steps alike. No
// function waits for a GPU but metrics().
class Task {
 public:
  virtual ~Task() = default;

  // outputs [N, ...] of the model, float or double unless takes_half(), and labels [N, ...] of N >
  // 0 samples to a scalar: the mean over what counts. `smoothing`: the weight of all other labels,
  // 0 unless is_cross_entropy(). Without gradients in evaluation.
  virtual at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                               double smoothing) const = 0;
  // Whether mean_loss() is torch's cross entropy, which label smoothing needs.
  virtual bool is_cross_entropy() const { return false; }

  // Whether mean_loss() and sums() take outputs in half precision too, as the model gives them.
  virtual bool takes_half() const { return false; }

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

  // The names in Metrics::values, the main metric first, which train.monitor's "auto" takes.
  virtual std::vector<MetricName> metric_names() const { return {}; }
  // The length of Metrics::totals.
  virtual int64_t totals() const { return 0; }
  // Sets the values that are not means over samples, from what was merged or summed over processes.
  virtual void derive(Metrics&) const {}
  // Whether an evaluation keeps all outputs and labels for whole(), in the host's memory.
  virtual bool keeps_outputs() const { return false; }
  // Sets the metrics of an evaluation that cannot be computed from sums, such as those that rank
  // all samples, from all outputs [N, ...] and labels [N, ...], as mean_loss() gets them, on the
  // CPU. N > 0.
  virtual void whole(const at::Tensor& /*outputs*/, const at::Tensor& /*labels*/, Metrics&) const {}

  // The loss to train on. With mixed labels it is the weighted mean of both losses: for cross
  // entropy, which is linear in its targets, that of soft targets.
  at::Tensor loss(const at::Tensor& outputs, const Targets& targets, double smoothing) const;
};

// A class for each sample: logits [N, classes] and labels [N] int64; cross entropy and accuracy.
// Ties between logits go to the lower class, on a GPU as in topk().
const Task& classification();
// A class for each pixel or voxel: logits [N, classes, H, W] and labels [N, H, W], or logits
// [N, classes, D, H, W] and labels [N, D, H, W]; labels are int64, -100 if ignored. Cross
// entropy, accuracy and counts over the others.
const Task& segmentation();

// Numbers: outputs and labels [N, ...] of `values` numbers for each sample, in any two shapes. The
// loss is the mean over all numbers; metrics are "mae", the mean absolute error, and "r2", as
// scikit-learn's r2_score: the mean over the numbers of a sample, up to 1,024; of more all
// together.
std::unique_ptr<const Task> regression(RegressionLoss loss, int64_t values);
// Any number of labels for each sample: logits [N, values] and labels [N, values] of 0 and 1.
// Binary cross entropy; "map", as scikit-learn's average_precision_score(average="macro") over a
// whole evaluation, and "f1" as its f1_score(average="macro") of probabilities above a half.
// metrics() fails with kData if labels are neither 0 nor 1.
std::unique_ptr<const Task> multilabel(int64_t values);

// The token after each: logits [N, T, V] and labels [N, T] int64, negative where ignored. Cross
// entropy over all tokens; metrics are "perplexity", exp of the mean loss, the loss in bits ("bpb",
// bits per byte, if the vocabulary is the 256 bytes, else "bits_per_token"), and "accuracy".
// `varies`: samples differ in their number of tokens, by which they are weighted; else every sample
// has the same weight.
std::unique_ptr<const Task> language(int64_t vocabulary, bool varies = false);

// The recipe's task, with the model's own loss if it has one. Valid as long as the model.
// `outputs`: ModelInput::outputs. kAuto is classification. `varies`: as for language().
std::unique_ptr<const Task> make_task(const TrainOptions& train, int64_t outputs,
                                      const ModelFacets& facets, bool varies = false);

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
