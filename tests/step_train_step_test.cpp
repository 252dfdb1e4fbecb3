// The step, its metrics, and evaluation, on a model small enough to work out by hand.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "saturate/train_step.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

TEST(RunningMetrics, CountsHitsAmongTheFirstAndTheFirstFive) {
  // Class c has logit c: label 6 is first, label 2 fifth, label 1 sixth.
  const at::Tensor logits = at::arange(7, at::kFloat).expand({3, 7});
  RunningMetrics running;
  running.add(at::scalar_tensor(2.0), logits, at::tensor({6, 2, 1}, at::kLong));
  running.add(at::scalar_tensor(5.0), logits.slice(0, 0, 1), at::tensor({6}, at::kLong));
  const Metrics metrics = running.read();
  EXPECT_EQ(metrics.samples, 4);
  EXPECT_DOUBLE_EQ(metrics.loss, (3 * 2.0 + 5.0) / 4);
  EXPECT_DOUBLE_EQ(metrics.accuracy, 2.0 / 4);
  EXPECT_DOUBLE_EQ(metrics.accuracy5.value(), 3.0 / 4);
  EXPECT_EQ(running.read().samples, 0) << "reading starts again";
}

TEST(RunningMetrics, FiveClassesHaveNoTopFive) {
  RunningMetrics running;
  running.add(at::scalar_tensor(1.0), at::randn({2, 5}), at::tensor({0, 1}, at::kLong));
  EXPECT_FALSE(running.read().accuracy5.has_value());
}

TEST(Metrics, MergedMeansAreOverAllSamples) {
  Metrics all;
  all.merge({10, 1.0, 0.5, 0.8});
  all.merge({30, 2.0, 0.9, 1.0});
  all.merge({});
  EXPECT_EQ(all.samples, 40);
  EXPECT_DOUBLE_EQ(all.loss, 1.75);
  EXPECT_DOUBLE_EQ(all.accuracy, 0.8);
  EXPECT_DOUBLE_EQ(all.accuracy5.value(), 0.95);
}

// Logits are a linear map of the pixels.
class LinearModel : public Model {
 public:
  explicit LinearModel(at::Tensor initial) : weight(initial.requires_grad_()) {}
  at::Tensor forward(const at::Tensor& images) override {
    return at::linear(images.contiguous().flatten(1), weight);
  }
  void set_training(bool now) override { training = now; }
  std::vector<NamedTensor> parameters() override { return {{"weight", weight}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

  at::Tensor weight;
  bool training = true;
};

TEST(TrainStep, IsForwardBackwardUpdateAndChargesEachPhase) {
  at::manual_seed(1);
  const at::Tensor initial = at::randn({4, 12});
  LinearModel model(initial.clone());
  DeviceBatch batch{at::randn({5, 3, 2, 2}), at::tensor({0, 1, 2, 3, 0}, at::kLong), {}};
  OptimizerOptions options;
  options.momentum = 0;
  options.nesterov = false;
  options.weight_decay = 0;
  const auto optimizer =
      make_optimizer(options, make_parameter_groups(options, model.parameters()));
  Ledger ledger(Env::posix());
  TrainStep step(model, *optimizer, PrecisionMode::kFp32, /*label_smoothing=*/0.1, ledger);
  RunningMetrics running;
  step.run(batch, /*lr=*/0.5, running);

  // The gradient of cross-entropy in closed form: (softmax - targets)^T x / N.
  const at::Tensor x = batch.images.flatten(1);
  const at::Tensor targets = at::one_hot(batch.labels, 4) * 0.9 + 0.1 / 4;
  const at::Tensor softmax = at::linear(x, initial).softmax(1);
  const at::Tensor gradient = (softmax - targets).t().matmul(x) / 5;
  EXPECT_TRUE(at::allclose(model.weight.detach(), initial - gradient * 0.5, 1e-5, 1e-6));
  EXPECT_FALSE(model.weight.grad().defined()) << "gradients are set to none";
  for (Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kHost})
    EXPECT_GT(ledger.times()[phase], 0) << phase_name(phase);
}

TEST(Evaluate, FlippedImagesCountHalf) {
  std::vector<std::string> files;
  for (size_t i = 0; i < 6; ++i) files.push_back(testing::noise_jpeg(4, 4, i));
  const testing::MemoryDataset dataset(files);
  AugmentOptions augment;
  augment.size = 4;
  LoaderOptions options;
  options.batch = 6;
  options.train = options.shuffle = false;
  Loader loader(dataset, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger);
  at::manual_seed(2);
  LinearModel model(at::randn({3, 48}));

  loader.start_epoch(0);
  DeviceBatch batch;
  ASSERT_TRUE(feeder.next(batch));
  const at::NoGradGuard no_grad;
  const at::Tensor mirrored = model.forward(batch.images.flip({3}));
  const at::Tensor logits = (model.forward(batch.images) + mirrored) / 2;
  const double plain =
      at::cross_entropy_loss(model.forward(batch.images), batch.labels).item<float>();
  const double mean = at::cross_entropy_loss(logits, batch.labels).item<float>();
  loader.start_epoch(0);
  EXPECT_NEAR(evaluate(model, feeder, {}).value().loss, plain, 1e-5);
  loader.start_epoch(0);
  EvaluationOptions flipped;
  flipped.flip = true;
  EXPECT_NEAR(evaluate(model, feeder, flipped).value().loss, mean, 1e-5);
  EXPECT_GT(std::abs(plain - mean), 1e-3) << "or this shows nothing";
  EXPECT_TRUE(model.training);
}

}  // namespace
}  // namespace saturate
