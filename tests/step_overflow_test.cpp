// fp16 steps whose forward overflows are skipped, as torch.amp.GradScaler skips those whose
// gradients overflow, and the run continues.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "saturate/gradient_reducer.h"
#include "saturate/module_model.h"
#include "saturate/train_step.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::quiet_options;
using testing::TempDir;

constexpr int64_t kOverflowSide = 4;

class NormedLinear : public torch::nn::Module {
 public:
  NormedLinear(int64_t side, int64_t classes)
      : norm_(register_module("norm", torch::nn::BatchNorm2d(3))),
        fc_(register_module("fc", torch::nn::Linear(3 * side * side, classes))) {}
  at::Tensor forward(const at::Tensor& images) { return fc_(norm_(images).flatten(1)); }

 protected:
  torch::nn::BatchNorm2d norm_;
  torch::nn::Linear fc_;
};

DeviceBatch overflow_batch(int step, bool overflows, int64_t count = 6) {
  DeviceBatch batch;
  batch.images = testing::symmetric("images." + std::to_string(step),
                                    {count, 3, kOverflowSide, kOverflowSide}, 2);
  if (overflows) batch.images[0][1][2][3].fill_(std::numeric_limits<float>::infinity());
  batch.labels = at::arange(count) % 3;
  batch.global_batch = count;
  return batch;
}

// A model, its optimizer and its step, in fp16.
struct Overflowing {
  std::unique_ptr<Model> model = filled();
  OptimizerOptions options = [] {
    OptimizerOptions adam;
    adam.name = "adamw";
    return adam;
  }();
  std::unique_ptr<Optimizer> optimizer =
      make_optimizer(options, make_parameter_groups(options, model->parameters()));
  Ledger ledger{Env::posix()};
  TrainStep step;
  RunningMetrics running{classification()};

  explicit Overflowing(int part = 0)
      : step(*model, classification(), *optimizer,
             {.precision = {.mode = PrecisionMode::kFp16, .initial_scale = 1024},
              .micro_batch = part},
             ledger) {
    model->set_training(true);
  }
  static std::unique_ptr<Model> filled() {
    auto model = make_module_model<NormedLinear>(kOverflowSide, 3);
    for (const auto& named : model->parameters()) testing::fill(named);
    return model;
  }
  void run(const DeviceBatch& batch) { step.run(batch, 0.01, running); }
  std::vector<at::Tensor> copies() {
    std::vector<at::Tensor> found;
    for (const auto& tensors : {model->parameters(), optimizer->state()})
      for (const auto& [name, tensor] : tensors) found.push_back(tensor.detach().clone());
    return found;
  }
};

void expect_all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(Overflow, InForwardSkipsTheStepAndHalvesTheScale) {
  Overflowing with, without;
  for (int step = 0; step < 6; ++step) {
    const bool overflows = step == 1 || step == 4;
    with.run(overflow_batch(step, overflows));
    if (!overflows) without.run(overflow_batch(step, false));
  }
  expect_all_equal(with.copies(), without.copies());
  EXPECT_EQ(with.step.loss_scale(), 256);
  EXPECT_EQ(without.step.loss_scale(), 1024);
  for (const auto& [name, tensor] : with.model->buffers())
    EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << name;
}

TEST(Overflow, IsNotInAnyMean) {
  Overflowing with, without;
  with.run(overflow_batch(0, false));
  without.run(overflow_batch(0, false));
  with.run(overflow_batch(1, true));
  const Metrics counted = with.running.read(), sound = without.running.read();
  EXPECT_EQ(counted.samples, 12);
  EXPECT_EQ(counted.overflowed, 6);
  EXPECT_EQ(counted.loss, sound.loss);
  EXPECT_EQ(counted.value("accuracy"), sound.value("accuracy"));
  with.run(overflow_batch(1, true));
  Metrics none = with.running.read();
  EXPECT_EQ(none.samples, none.overflowed);
  EXPECT_TRUE(std::isnan(none.loss));
  none.merge(sound);
  EXPECT_EQ(none.loss, sound.loss);
  EXPECT_EQ(none.samples, 12);
  Metrics other_way = sound;
  other_way.merge(counted);
  EXPECT_EQ(other_way.loss, sound.loss);
  EXPECT_EQ(other_way.overflowed, 6);
}

// The infinite image is in the first of two micro-batches.
TEST(Overflow, InOneMicroBatchSkipsTheWholeStep) {
  Overflowing parts(3);
  const auto before = parts.copies();
  parts.run(overflow_batch(0, true));
  expect_all_equal(parts.copies(), before);
  const Metrics metrics = parts.running.read();
  EXPECT_EQ(metrics.samples, 6);
  EXPECT_EQ(metrics.overflowed, 3);
  EXPECT_TRUE(std::isfinite(metrics.loss));
}

TEST(Overflow, OfSegmentationSkipsItsPixels) {
  const at::Tensor logits = testing::symmetric("pixels", {2, 3, 4, 4}, 1);
  const at::Tensor labels = at::zeros({2, 4, 4}, at::kLong);
  const at::Tensor infinite = at::scalar_tensor(std::numeric_limits<float>::infinity());
  RunningMetrics running(segmentation()), sound(segmentation());
  for (RunningMetrics* each : {&running, &sound}) each->add(at::scalar_tensor(2.f), logits, labels);
  running.add(infinite, logits, labels, /*may_overflow=*/true);
  const Metrics found = running.read(), expected = sound.read();
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.mean_iou(), expected.mean_iou());
  EXPECT_EQ(found.samples, 4);
  EXPECT_EQ(found.overflowed, 2);
}

// A user's loss whose gradient is finite although the loss is not.
TEST(Overflow, ANonFiniteLossHasNoFiniteGradient) {
  const GradScaler scaler({.initial_scale = 8}, at::kCPU);
  const at::Tensor weight = at::tensor({1.f, 2.f}).requires_grad_();
  const auto gradient_of = [&](double offset) {
    weight.mutable_grad().reset();
    scaler.scale(weight.sum() + offset).backward();
    return weight.grad();
  };
  EXPECT_TRUE(at::equal(gradient_of(1), at::tensor({8.f, 8.f})));
  EXPECT_FALSE(at::isfinite(gradient_of(INFINITY)).any().item<bool>());
}

// One of the ranks overflows: all skip the step, and continue together.
TEST(Overflow, OnOneRankIsOnAllRanks) {
  std::vector<std::vector<at::Tensor>> ends(2);
  std::vector<double> scales(2);
  std::vector<std::unique_ptr<Overflowing>> each;  // models are initialised by one thread
  for (int rank = 0; rank < 2; ++rank) each.push_back(std::make_unique<Overflowing>());
  const auto before = each[0]->copies();
  testing::run_ranks(2, [&](Group& group) {
    Overflowing& own = *each[size_t(group.rank())];
    GradientReducer reducer(group, own.model->parameters(), {});
    own.step.use_reducer(reducer);
    for (int step = 0; step < 3; ++step) {
      DeviceBatch batch = overflow_batch(2 * step + group.rank(), step == 0 && group.rank() == 1);
      batch.global_batch = 12;
      own.run(batch);
      if (step == 0) expect_all_equal(own.copies(), before);
    }
    ends[size_t(group.rank())] = own.copies();
    scales[size_t(group.rank())] = own.step.loss_scale().value();
  });
  expect_all_equal(ends[0], ends[1]);
  EXPECT_FALSE(at::equal(ends[0].back(), before.back()));
  EXPECT_EQ(scales, (std::vector<double>{512, 512}));
}

// ---- Whole runs --------------------------------------------------------------------------------

std::atomic<int> overflow_forwards{0};

enum class Overflows { kNothing, kThird, kFirstFour, kAll, kGradients };

// A network whose third forward in training overflows, or the first four, or each, or whose
// gradients always do.
template <Overflows kOverflows>
class OverflowingModel : public NormedLinear {
 public:
  using NormedLinear::NormedLinear;
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor logits = NormedLinear::forward(images);
    if (!is_training()) return logits;
    const int number = ++overflow_forwards;
    if (kOverflows == Overflows::kAll || (kOverflows == Overflows::kThird && number == 3) ||
        (kOverflows == Overflows::kFirstFour && number <= 4))
      return logits * INFINITY;
    // 0 times an infinite slope.
    if (kOverflows == Overflows::kGradients) return logits + (fc_->weight * 0).sum().sqrt() * 0;
    return logits;
  }
};

template <Overflows kOverflows>
std::unique_ptr<Model> make_overflowing(const ModelOptions&, const ModelInput& input) {
  return make_module_model<OverflowingModel<kOverflows>>(input.size.width, input.outputs);
}

Recipe overflowing_recipe(const std::string& name, PrecisionMode mode = PrecisionMode::kFp16) {
  [[maybe_unused]] static const bool once = [] {
    add_model("overflows_never", "of a test", make_overflowing<Overflows::kNothing>);
    add_model("overflows_once", "of a test", make_overflowing<Overflows::kThird>);
    add_model("overflows_first", "of a test", make_overflowing<Overflows::kFirstFour>);
    add_model("overflows_always", "of a test", make_overflowing<Overflows::kAll>);
    add_model("overflows_backward", "of a test", make_overflowing<Overflows::kGradients>);
    return true;
  }();
  overflow_forwards = 0;
  Recipe recipe = testing::small_recipe();
  recipe.model.name = name;
  recipe.precision.mode = mode;
  recipe.precision.initial_scale = 64;
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  return recipe;
}

TrainResult run_overflowing(const Recipe& recipe) {
  const TempDir dir;
  return Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
}

TEST(OverflowInARun, SkipsTheStepAndTheRunEndsWell) {
  for (const bool late : {true, false}) {
    Recipe recipe = overflowing_recipe("overflows_once");
    recipe.train.late_metrics = late;
    recipe.watch.every = 1;
    const TrainResult result = run_overflowing(recipe);
    EXPECT_EQ(result.end, RunEnd::kDone);
    EXPECT_EQ(result.steps, 8);
    EXPECT_TRUE(std::isfinite(result.train->loss));
    EXPECT_TRUE(std::isfinite(result.eval->loss));
  }
}

// Its loss is NaN, and is not a value of the metric.
TEST(OverflowInARun, InAWholeShortEpochDoesNotStopItEarly) {
  for (const std::string monitor : {"train_loss", "train_accuracy"}) {
    Recipe recipe = overflowing_recipe("overflows_first");
    recipe.train.monitor = monitor;
    recipe.train.early_stop = 1;
    recipe.train.epochs = 2;
    const TrainResult result = run_overflowing(recipe);
    EXPECT_EQ(result.end, RunEnd::kDone);
    EXPECT_EQ(result.steps, 8);
    EXPECT_EQ(result.best.best_step, 8) << "the only value";
  }
}

TEST(OverflowInARun, InEveryStepEndsTheRun) {
  for (const std::string name : {"overflows_always", "overflows_backward"}) {
    SCOPED_TRACE(name);
    Recipe recipe = overflowing_recipe(name);
    for (const double epochs : {10.0, 0.5}) {  // two steps
      recipe.train.epochs = epochs;
      const Error error = error_of([&] { run_overflowing(recipe); });
      EXPECT_EQ(error.kind(), ErrorKind::kRun);
      EXPECT_TRUE(error.reason().starts_with("fp16 overflows in each of the last steps up to"))
          << error.what();
      EXPECT_NE(error.remedy().find("precision.mode"), std::string::npos);
    }
  }
}

TEST(OverflowInARun, IsAnErrorInOtherPrecisions) {
  const Error later =
      error_of([] { run_overflowing(overflowing_recipe("overflows_once", PrecisionMode::kFp32)); });
  EXPECT_TRUE(later.reason().starts_with("the loss is not finite by step")) << later.what();
  EXPECT_NE(later.remedy().find("optimizer.lr"), std::string::npos);
}

// No step has changed anything: the learning rate is not the cause.
TEST(OverflowInARun, AtTheFirstStepIsNotBlamedOnTheLearningRate) {
  Recipe recipe = overflowing_recipe("overflows_always", PrecisionMode::kFp32);
  recipe.train.late_metrics = false;
  const Error error = error_of([&] { run_overflowing(recipe); });
  EXPECT_EQ(error.reason(), "the loss is not finite before any step changed a weight");
  EXPECT_EQ(error.remedy().find("optimizer.lr"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
