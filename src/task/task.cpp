#include "saturate/task.h"

#include <ATen/TensorOperators.h>

#include <utility>

namespace saturate {
namespace {

// A task, but for the loss if the model has its own.
class ModelTask : public Task {
 public:
  ModelTask(const Task& task, LossFunction loss) : task_(task), loss_(std::move(loss)) {}
  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double smoothing) const override {
    return loss_ ? loss_(outputs, labels) : task_.mean_loss(outputs, labels, smoothing);
  }
  bool is_cross_entropy() const override { return !loss_ && task_.is_cross_entropy(); }
  at::Tensor counted(const at::Tensor& labels) const override { return task_.counted(labels); }
  at::Tensor mirrored(const at::Tensor& outputs) const override { return task_.mirrored(outputs); }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    return task_.sums(loss, outputs, labels);
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    return task_.metrics(sums, samples);
  }

 private:
  const Task& task_;
  const LossFunction loss_;  // empty: the task's
};

}  // namespace

at::Tensor Task::counted(const at::Tensor&) const {
  return {};
}

at::Tensor Task::loss(const at::Tensor& outputs, const Targets& targets, double smoothing) const {
  const auto one = [&](const at::Tensor& labels) { return mean_loss(outputs, labels, smoothing); };
  if (!targets.mixed.defined()) return one(targets.labels);
  return one(targets.labels) * targets.lambda + one(targets.mixed) * (1 - targets.lambda);
}

std::unique_ptr<const Task> make_task(TaskKind kind, const ModelFacets& facets) {
  const Task& task = kind == TaskKind::kSegment ? segmentation() : classification();
  return std::make_unique<ModelTask>(task, facets.loss);
}

}  // namespace saturate
