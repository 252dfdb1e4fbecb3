// Loss and metrics of segmentation, compared with torch's and numpy's
// (tests/oracles/segmentation_goldens.py).
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "saturate/train_step.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::symmetric;

constexpr int64_t kPixelClasses = 4, kSize = 8;

at::Tensor labels(int64_t count) {
  const auto n = at::arange(count).view({count, 1, 1}), y = at::arange(kSize).view({1, kSize, 1}),
             x = at::arange(kSize).view({1, 1, kSize});
  at::Tensor found = (x + 2 * y + n).remainder(kPixelClasses - 1);
  found.select(2, 3).fill_(kIgnoredLabel);
  found.select(1, 5).fill_(kIgnoredLabel);
  return found;
}

nlohmann::json golden() {
  std::ifstream file(testing::source_path("tests/goldens/segmentation/metrics.json"));
  return nlohmann::json::parse(file);
}

// One convolution of one pixel: the logits are the images' three channels and a bias.
class PixelModel : public Model {
 public:
  PixelModel() : weight_(symmetric("weight", {kPixelClasses, 3}, 1).requires_grad_()) {}
  at::Tensor forward(const at::Tensor& images) override {
    return images.permute({0, 2, 3, 1}).matmul(weight_.t()).permute({0, 3, 1, 2});
  }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {{"weight", weight_}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

 private:
  at::Tensor weight_;
};

TEST(SegmentationMetrics, EqualTheOracles) {
  const auto expected = golden();
  const at::Tensor logits = symmetric("logits", {3, kPixelClasses, kSize, kSize}, 2),
                   truth = labels(3);
  RunningMetrics whole(segmentation()), parts(segmentation());
  const at::Tensor loss = at::full({}, 0.5);
  whole.add(loss, logits, truth);
  for (int64_t i = 0; i < 3; ++i) parts.add(loss, logits.narrow(0, i, 1), truth.narrow(0, i, 1));
  for (RunningMetrics* running : {&whole, &parts}) {
    const Metrics found = running->read();
    EXPECT_EQ(found.samples, 3);
    EXPECT_DOUBLE_EQ(found.loss, 0.5);
    EXPECT_DOUBLE_EQ(found.value("accuracy").value_or(-1), expected["accuracy"].get<double>());
    ASSERT_TRUE(found.mean_iou());
    EXPECT_DOUBLE_EQ(*found.mean_iou(), expected["mean_iou"].get<double>());
  }
  EXPECT_EQ(whole.read().samples, 0);
}

TEST(SegmentationMetrics, MergeByPixels) {
  Metrics one, other;
  one.samples = other.samples = 1;
  one.loss = 1;
  other.loss = 4;
  one.pixels = {{1, 1, 1}, {0, 0, 0}};
  other.pixels = {{1, 1, 2}, {0, 1, 0}};
  Metrics all;
  all.merge(one);
  all.merge(other);
  EXPECT_EQ(all.samples, 2);
  EXPECT_DOUBLE_EQ(all.loss, 3);
  EXPECT_EQ(all.pixels[0].predicted, 3);
  EXPECT_DOUBLE_EQ(*all.mean_iou(), (2.0 / 3 + 0) / 2);
}

TEST(SegmentationMetrics, AClassWithoutPixelsIsIgnored) {
  Metrics metrics;
  EXPECT_FALSE(metrics.mean_iou());
  metrics.pixels = {{3, 3, 3}, {0, 0, 0}};
  EXPECT_DOUBLE_EQ(*metrics.mean_iou(), 1);
}

// In training the loss of such a batch is 0, which an evaluation must not take for the best.
TEST(SegmentationMetrics, WithoutALabelledPixelAnEvaluationIsUnknown) {
  RunningMetrics running(segmentation());
  const at::Tensor logits = symmetric("logits", {3, kPixelClasses, kSize, kSize}, 2),
                   none = at::full({3, kSize, kSize}, kIgnoredLabel, at::kLong);
  running.add(segmentation().mean_loss(logits, none, 0), logits, none);
  Metrics found = running.read();
  EXPECT_EQ(found.loss, 0);
  found.clear_if_uncounted();
  EXPECT_TRUE(std::isnan(found.loss));
  EXPECT_TRUE(std::isnan(found.value("accuracy").value()));
  EXPECT_FALSE(found.value("iou"));
  running.add(segmentation().mean_loss(logits, labels(3), 0), logits, labels(3));
  const Metrics counted = running.read();
  Metrics same = counted;
  same.clear_if_uncounted();
  EXPECT_EQ(same.loss, counted.loss);
  found.merge(counted);
  EXPECT_EQ(found.samples, 6);
  EXPECT_EQ(found.loss, counted.loss);
  EXPECT_EQ(found.value("accuracy"), counted.value("accuracy"));
}

struct Trained {
  double loss;
  at::Tensor gradient;
};

Trained train(const DeviceBatch& batch, int part, double smoothing) {
  PixelModel model;
  OptimizerOptions sgd;
  sgd.name = "sgd";
  const auto optimizer =
      make_optimizer(sgd, make_parameter_groups(sgd, model.parameters()), PrecisionMode::kFp32);
  Ledger ledger(Env::posix());
  StepOptions options;
  options.micro_batch = part;
  options.label_smoothing = smoothing;
  TrainStep step(model, segmentation(), *optimizer, options, ledger);
  Trained found;
  step.observe_gradients([&] { found.gradient = model.parameters()[0].tensor.grad().clone(); });
  RunningMetrics metrics(segmentation());
  step.run(batch, 0.1, metrics);
  found.loss = metrics.read().loss;
  return found;
}

// The oracle's loss of these logits: the model's weights are the identity, except for the last
// class.
TEST(SegmentationStep, LossEqualsTorchsWithIgnoredPixels) {
  const auto expected = golden();
  const at::Tensor logits = symmetric("logits", {3, kPixelClasses, kSize, kSize}, 2);
  class Given : public PixelModel {
   public:
    explicit Given(at::Tensor logits) : logits_(std::move(logits)) {}
    at::Tensor forward(const at::Tensor&) override {
      return logits_ + parameters()[0].tensor.sum() * 0;
    }

   private:
    at::Tensor logits_;
  } model(logits);
  OptimizerOptions sgd;
  const auto optimizer =
      make_optimizer(sgd, make_parameter_groups(sgd, model.parameters()), PrecisionMode::kFp32);
  Ledger ledger(Env::posix());
  for (const auto& [key, smoothing] : {std::pair{"loss", 0.0}, {"smoothed", 0.1}}) {
    StepOptions options;
    options.label_smoothing = smoothing;
    TrainStep step(model, segmentation(), *optimizer, options, ledger);
    RunningMetrics metrics(segmentation());
    DeviceBatch batch;
    batch.images = symmetric("images", {3, 3, kSize, kSize}, 1);
    batch.labels = labels(3);
    step.run(batch, 0, metrics);
    EXPECT_NEAR(metrics.read().loss, expected[key].get<double>(), 1e-6) << key;
  }
}

// Micro-batches with different numbers of labelled pixels, of several images: the gradient is that
// of the whole batch.
TEST(SegmentationStep, MicroBatchesAreWeightedByTheirLabelledPixels) {
  DeviceBatch batch;
  batch.images = symmetric("images", {5, 3, kSize, kSize}, 1);
  batch.labels = labels(5);
  batch.labels[1].fill_(kIgnoredLabel);
  batch.labels[4].narrow(0, 0, 7).fill_(kIgnoredLabel);
  const Trained whole = train(batch, 0, 0.1);
  EXPECT_GT(whole.gradient.norm().item<double>(), 1e-3);
  for (const int part : {1, 2, 3}) {
    const Trained parts = train(batch, part, 0.1);
    EXPECT_TRUE(at::allclose(parts.gradient, whole.gradient, 1e-5, 1e-7)) << part;
    EXPECT_NEAR(parts.loss, whole.loss, 1e-6) << part;
  }
}

TEST(SegmentationStep, WithoutALabelledPixelNoWeightChanges) {
  DeviceBatch batch;
  batch.images = symmetric("images", {2, 3, kSize, kSize}, 1);
  batch.labels = at::full({2, kSize, kSize}, kIgnoredLabel, at::kLong);
  const Trained none = train(batch, 0, 0);
  EXPECT_EQ(none.loss, 0);
  EXPECT_EQ(none.gradient.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace saturate
