#include "saturate/task.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "task/class_counts.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

constexpr int64_t kTop = 5;

struct Hits {
  int64_t first = 0, five = 0;  // samples whose label is the largest logit, or among the five
                                // largest
};

// A NaN logit ranks above all others, as in topk(), so a label with such a logit is never a hit.
template <class Value>
Hits count_hits(const Value* logits, const int64_t* labels, int64_t count, int64_t classes) {
  Hits hits;
  for (int64_t i = 0; i < count; ++i, logits += classes) {
    const int64_t label = labels[i];
    if (label < 0 || label >= classes) continue;
    const Value own = logits[label];
    int before = 0;
    for (int64_t c = 0; c < label; ++c) before += !(logits[c] < own);
    for (int64_t c = label + 1; c < classes; ++c) before += !(logits[c] <= own);
    hits.first += before == 0 && own == own;
    hits.five += before < 5 && own == own;
  }
  return hits;
}

// Reading the memory directly saves some microseconds over the dozen operators used on a GPU.
Hits count_hits(const at::Tensor& logits, const at::Tensor& labels) {
  const auto count = [&](const at::Tensor& values, auto* data) {
    return count_hits(data, labels.contiguous().const_data_ptr<int64_t>(), values.size(0),
                      values.size(1));
  };
  if (logits.scalar_type() == at::kDouble) {
    const at::Tensor values = logits.contiguous();
    return count(values, values.const_data_ptr<double>());
  }
  const at::Tensor values = logits.to(at::kFloat).contiguous();
  return count(values, values.const_data_ptr<float>());
}

// A task with the model's loss in place of the task's.
class WithLoss : public Task {
 public:
  WithLoss(std::unique_ptr<const Task> task, LossFunction loss)
      : task_(std::move(task)), loss_(std::move(loss)) {}
  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double /*smoothing*/) const override {
    return loss_(outputs, labels);
  }
  at::Tensor counted(const at::Tensor& labels) const override { return task_->counted(labels); }
  at::Tensor mirrored(const at::Tensor& outputs) const override { return task_->mirrored(outputs); }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    return task_->sums(loss, outputs, labels);
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    return task_->metrics(sums, samples);
  }
  std::vector<MetricName> metric_names() const override { return task_->metric_names(); }
  int64_t totals() const override { return task_->totals(); }
  void derive(Metrics& metrics) const override { task_->derive(metrics); }
  bool keeps_outputs() const override { return task_->keeps_outputs(); }
  void whole(const at::Tensor& outputs, const at::Tensor& labels, Metrics& metrics) const override {
    task_->whole(outputs, labels, metrics);
  }

 private:
  const std::unique_ptr<const Task> task_;
  const LossFunction loss_;
};

class Classification : public Task {
 public:
  at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels,
                       double smoothing) const override {
    return cross_entropy(logits, labels, smoothing);
  }
  bool is_cross_entropy() const override { return true; }
  std::vector<MetricName> metric_names() const override {
    return {{.name = "accuracy"}, {.name = "accuracy5", .without = 1}};
  }

  // [3] double: loss * N, top-1 hits, top-5 hits; [2] if there are not more than five classes.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& logits,
                               const at::Tensor& labels) const override {
    const bool has_top5 = logits.size(1) > kTop;
    if (logits.is_cpu()) {
      const Hits hits = count_hits(logits, labels);
      const double values[] = {loss.item<double>() * double(labels.size(0)), double(hits.first),
                               double(hits.five)};
      return {at::tensor(at::ArrayRef<double>(values, has_top5 ? 3 : 2), at::kDouble)};
    }
    const auto ranked = std::get<1>(at::topk(logits, std::min(kTop, logits.size(1)), 1));
    const auto hits = ranked.eq(labels.unsqueeze(1));  // [N, up to 5]
    std::vector<at::Tensor> values = {loss.to(at::kDouble) * labels.size(0),
                                      hits.select(1, 0).sum().to(at::kDouble)};
    if (has_top5) values.push_back(hits.sum().to(at::kDouble));
    return {at::stack(values)};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    const at::Tensor host = sums.at(0).cpu();  // the only wait for the device
    const auto mean = [&](int64_t i) {
      return samples > 0 ? host.const_data_ptr<double>()[i] / double(samples) : std::nan("");
    };
    Metrics metrics;
    metrics.loss = mean(0);
    metrics.set("accuracy", mean(1));
    if (host.numel() > 2) metrics.set("accuracy5", mean(2));
    return metrics;
  }
};

class Segmentation : public Task {
 public:
  // 0 if no pixel is labelled, where torch returns NaN.
  at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels,
                       double smoothing) const override {
    return cross_entropy(logits, labels, smoothing, at::Reduction::Sum) /
           counted(labels).clamp_min(1);
  }
  bool is_cross_entropy() const override { return true; }
  at::Tensor counted(const at::Tensor& labels) const override { return labels.ge(0).sum(); }
  std::vector<MetricName> metric_names() const override {
    return {{.name = "accuracy"}, {.name = "iou"}};
  }
  void derive(Metrics& metrics) const override {
    if (const auto iou = metrics.mean_iou()) metrics.set("iou", *iou);
  }
  at::Tensor mirrored(const at::Tensor& logits) const override { return logits.flip({3}); }

  // Pixels by class, as of count_classes(), and loss * labelled pixels [] double.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& logits,
                               const at::Tensor& labels) const override {
    const at::Tensor labelled = labels.ge(0);
    return {count_classes(labels, logits.argmax(1), labelled, logits.size(1)),
            loss.to(at::kDouble) * labelled.sum()};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    Metrics metrics;
    if (samples == 0) {
      metrics.loss = std::nan("");
      metrics.set("accuracy", std::nan(""));
      return metrics;
    }
    const at::Tensor host = sums.at(0).cpu();  // waits for the device
    const int64_t classes = host.size(1);
    const int64_t* const count = host.const_data_ptr<int64_t>();
    int64_t hits = 0, labelled = 0;
    for (int64_t i = 0; i < classes; ++i) {
      const ClassPixels own{count[i], count[classes + i], count[2 * classes + i]};
      metrics.pixels.push_back(own);
      hits += own.hits;
      labelled += own.labelled;
    }
    if (labelled > 0) metrics.loss = sums.at(1).item<double>() / double(labelled);
    metrics.set("accuracy", labelled > 0 ? double(hits) / double(labelled) : 0);
    derive(metrics);
    return metrics;
  }
};

}  // namespace

const Task& classification() {
  static const Classification task;
  return task;
}

const Task& segmentation() {
  static const Segmentation task;
  return task;
}

at::Tensor Task::counted(const at::Tensor&) const {
  return {};
}

at::Tensor Task::loss(const at::Tensor& outputs, const Targets& targets, double smoothing) const {
  const auto one = [&](const at::Tensor& labels) { return mean_loss(outputs, labels, smoothing); };
  if (!targets.mixed.defined()) return one(targets.labels);
  return one(targets.labels) * targets.lambda + one(targets.mixed) * (1 - targets.lambda);
}

std::unique_ptr<const Task> make_task(const TrainOptions& train, int64_t outputs,
                                      const ModelFacets& facets, bool varies) {
  std::unique_ptr<const Task> task;
  switch (train.task) {
    case TaskKind::kSegment:
      task = std::make_unique<Segmentation>();
      break;
    case TaskKind::kRegress:
      task = regression(train.loss, outputs);
      break;
    case TaskKind::kMultilabel:
      task = multilabel(outputs);
      break;
    case TaskKind::kLanguage:
      task = language(outputs, varies);
      break;
    case TaskKind::kAuto:
    case TaskKind::kClassify:
      task = std::make_unique<Classification>();
  }
  if (!facets.loss) return task;
  return std::make_unique<WithLoss>(std::move(task), facets.loss);
}

}  // namespace saturate
