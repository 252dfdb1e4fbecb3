// Tasks that a program defines, and losses that a model defines.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <utility>

#include "run/training_parts.h"
#include "saturate/module_model.h"
#include "saturate/train_step.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;

// A number for each image: outputs [N, 1], labels [N] float, no classes.
class Regression : public Task {
 public:
  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels, double) const override {
    return at::mse_loss(outputs.squeeze(1), labels);
  }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor&,
                               const at::Tensor& labels) const override {
    return {loss.to(at::kDouble) * labels.size(0)};
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    Metrics metrics;
    metrics.loss = sums.at(0).item<double>() / double(samples);
    return metrics;
  }
};

class OneNumber : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) { return fc_(images.flatten(1)); }

 private:
  torch::nn::Linear fc_{
      register_module("fc", torch::nn::Linear(torch::nn::LinearOptions(12, 1).bias(false)))};
};

OptimizerOptions plain_descent() {
  OptimizerOptions sgd;
  sgd.momentum = sgd.weight_decay = 0;
  sgd.nesterov = false;
  return sgd;
}

// Five images in micro-batches of two.
TEST(OwnTask, IsMinimisedAndReported) {
  at::manual_seed(1);
  const Regression task;
  const auto model = make_module_model<OneNumber>();
  const at::Tensor weight = model->parameters()[0].tensor, start = weight.detach().clone();
  const auto optimizer =
      make_optimizer(plain_descent(), make_parameter_groups(plain_descent(), model->parameters()));
  Ledger ledger(Env::posix());
  TrainStep step(*model, task, *optimizer, {.micro_batch = 2}, ledger);
  const DeviceBatch batch{at::randn({5, 3, 2, 2}), at::randn({5}), {}};
  RunningMetrics running(task);
  step.run(batch, /*lr=*/0.5, running);

  const at::Tensor x = batch.images.flatten(1);
  const at::Tensor error = x.matmul(start.t()) - batch.labels.unsqueeze(1);
  EXPECT_TRUE(
      at::allclose(weight.detach(), start - error.t().matmul(x) * (0.5 * 2 / 5), 1e-5, 1e-6));
  const Metrics metrics = running.read();
  EXPECT_EQ(metrics.samples, 5);
  EXPECT_NEAR(metrics.loss, error.square().mean().item<double>(), 1e-6);
}

TEST(OwnTask, DoesNotSupportLabelSmoothing) {
  const Regression task;
  const auto model = make_module_model<OneNumber>();
  const auto optimizer =
      make_optimizer(plain_descent(), make_parameter_groups(plain_descent(), model->parameters()));
  Ledger ledger(Env::posix());
  const Error error =
      error_of([&] { TrainStep(*model, task, *optimizer, {.label_smoothing = 0.1}, ledger); });
  EXPECT_EQ(error.where(), "train.label_smoothing");
}

class NamedMetric : public Regression {
 public:
  explicit NamedMetric(std::string name) : name_(std::move(name)) {}
  std::vector<MetricName> metric_names() const override { return {{.name = name_}}; }

 private:
  const std::string name_;
};

TEST(OwnTask, AMetricNamedLikeAKeyOfRecordsIsRefused) {
  for (const char* name : {"", "lr", "loss", "phases", "metrics", "mean_iou", "gpu_busy"}) {
    Recipe recipe;
    const Error error = error_of([&] { resolve_metrics(recipe, NamedMetric(name)); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << name;
    EXPECT_EQ(error.where(), "metric_names");
  }
  for (const char* name : {"accuracy", "accuracy5", "iou", "error"}) {
    Recipe recipe;
    recipe.train.monitor = "auto";
    resolve_metrics(recipe, NamedMetric(name));
    EXPECT_EQ(recipe.train.monitor, std::string("eval_") + name);
  }
}

// A segmentation model's own loss replaces only the loss, not the metrics.
TEST(MakeTask, UsesTheModelsOwnLossAndTheKindsMetrics) {
  const at::Tensor logits = at::zeros({2, 3, 4, 4}), labels = at::zeros({2, 4, 4}, at::kLong);
  labels[1].fill_(-100);
  ModelFacets facets;
  TrainOptions train;
  train.task = TaskKind::kSegment;
  const auto plain = make_task(train, 3, facets);
  EXPECT_TRUE(plain->is_cross_entropy());
  EXPECT_NEAR(plain->mean_loss(logits, labels, 0).item<double>(), std::log(3), 1e-6);
  facets.loss = [](const at::Tensor&, const at::Tensor&) { return at::scalar_tensor(7.f); };
  const auto own = make_task(train, 3, facets);
  EXPECT_FALSE(own->is_cross_entropy());
  EXPECT_EQ(own->counted(labels).item<int64_t>(), 16);
  const at::Tensor loss = own->mean_loss(logits, labels, 0);
  RunningMetrics running(*own);
  running.add(loss, logits, labels);
  const Metrics metrics = running.read();
  EXPECT_EQ(metrics.loss, 7);
  ASSERT_EQ(metrics.pixels.size(), 3u);
  EXPECT_EQ(metrics.pixels[0].hits, 16);
}

}  // namespace
}  // namespace saturate
