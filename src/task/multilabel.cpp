#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>
#include <fmt/format.h>

#include <cmath>

#include "saturate/data/error.h"
#include "saturate/task.h"
#include "task/label_shape.h"

namespace saturate {
namespace {

// The precision at each distinct score, weighted by the recall that it adds; 0 without a positive.
double average_precision(const at::Tensor& scores, const at::Tensor& labels) {
  const auto [sorted, order] = scores.contiguous().sort(/*stable=*/true, 0, /*descending=*/true);
  const at::Tensor positives = labels.index_select(0, order).gt(0.5).contiguous();
  const auto* const score = sorted.const_data_ptr<double>();
  const bool* const positive = positives.const_data_ptr<bool>();
  const int64_t count = sorted.numel(), all = positives.sum().item<int64_t>();
  if (all == 0) return 0;
  double sum = 0;
  int64_t hits = 0, before = 0;
  for (int64_t i = 0; i < count; ++i) {
    hits += positive[i];
    if (i + 1 < count && score[i + 1] == score[i]) continue;
    sum += double(hits - before) / double(all) * (double(hits) / double(i + 1));
    before = hits;
  }
  return sum;
}

class Multilabel : public Task {
 public:
  explicit Multilabel(int64_t values) : values_(values) {}

  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double /*smoothing*/) const override {
    const auto [logits, target] = alike(outputs, labels);
    return at::binary_cross_entropy_with_logits(logits, target);
  }

  std::vector<MetricName> metric_names() const override {
    return {{.name = "map", .in_training = false}, {.name = "f1"}};
  }
  int64_t totals() const override { return 3 * values_; }

  // [2 + 3 values] double: loss * N; by label those found, wrongly found, missed; targets that are
  // neither 0 nor 1.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    const auto [logits, target] = alike(outputs, labels);
    const at::Tensor found = logits.gt(0).reshape({-1, values_}),
                     right = target.gt(0.5).reshape({-1, values_});
    const auto count = [](const at::Tensor& which) { return which.sum(0).to(at::kDouble); };
    return {at::cat({(loss.to(at::kDouble) * labels.size(0)).view({1}),
                     count(found.logical_and(right)), count(found.logical_and(right.logical_not())),
                     count(right.logical_and(found.logical_not())),
                     labels.ne(0).logical_and(labels.ne(1)).sum().to(at::kDouble).view({1})})};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    const at::Tensor host = sums.at(0).cpu();  // waits for the device
    const double* const sum = host.const_data_ptr<double>();
    const int64_t wrong = host.numel() - 1;
    if (sum[wrong] > 0)
      fail(ErrorKind::kData,
           fmt::format("{:.0f} numbers of the targets are neither 0 nor 1, and train.task is "
                       "multilabel",
                       sum[wrong]),
           "train.task",
           "Correct the targets (`saturate data inspect SOURCE` prints their range), or set "
           "train.task=regress");
    Metrics metrics;
    metrics.loss = samples > 0 ? sum[0] / double(samples) : std::nan("");
    metrics.totals.assign(sum + 1, sum + wrong);
    derive(metrics);
    return metrics;
  }

  void derive(Metrics& metrics) const override {
    if (metrics.totals.empty()) return;
    const double* const found = metrics.totals.data();
    double f1 = 0;
    for (int64_t i = 0; i < values_; ++i) {
      const double hits = 2 * found[i], wrong = found[values_ + i] + found[2 * values_ + i];
      f1 += hits + wrong > 0 ? hits / (hits + wrong) : 0;
    }
    metrics.set("f1", f1 / double(values_));
  }

  bool keeps_outputs() const override { return true; }
  void whole(const at::Tensor& outputs, const at::Tensor& labels, Metrics& metrics) const override {
    const at::Tensor scores = outputs.reshape({-1, values_}),
                     target = labels.reshape({-1, values_});
    double sum = 0;
    for (int64_t i = 0; i < values_; ++i)  // each converted alone, which takes less memory
      sum += average_precision(scores.select(1, i).to(at::kDouble),
                               target.select(1, i).to(at::kDouble));
    metrics.values.insert(metrics.values.begin(), {"map", sum / double(values_)});
  }

 private:
  const int64_t values_;
};

}  // namespace

std::unique_ptr<const Task> multilabel(int64_t values) {
  return std::make_unique<Multilabel>(values);
}

}  // namespace saturate
