// Compiled steps in reduced precision, compared with eager ones: under autocast both round, each in
// its own order, so the whole change of the weights is compared. step_compiled_test.cpp has fp32.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "saturate/train_step.h"
#include "step/compiled_step.h"
#include "tests/compiled_testing.h"

namespace saturate {
namespace {

// A recipe's model and its step, compiled if the recipe names a package.
class SteppedModel {
 public:
  explicit SteppedModel(const Recipe& recipe)
      : ledger_(Env::posix()),
        model_(testing::compiled_model(recipe)),
        optimizer_(make_optimizer(recipe.optimizer,
                                  make_parameter_groups(recipe.optimizer, model_->parameters()))),
        step_(*model_, classification(), *optimizer_,
              {.precision = recipe.precision, .label_smoothing = recipe.train.label_smoothing},
              ledger_) {
    model_->set_training(true);
    if (!recipe.train.compiled.empty())
      step_.use_compiled(std::make_unique<CompiledStep>(Env::posix(), recipe, *model_));
  }

  // The batch has the package's size; the eager step would compute another one.
  void run(const DeviceBatch& batch) {
    step_.run(batch, 0.05, metrics_);
    EXPECT_EQ(step_.first_uncompiled(), 0);
  }
  void set_scale(double scale) {
    step_.load_scaler_state(
        {{"scale", at::full({}, scale, at::kFloat)}, {"growth_tracker", at::zeros({}, at::kInt)}});
  }
  double scale() const { return step_.scaler_state().at(0).tensor.item<double>(); }
  double loss() { return metrics_.read().loss; }
  // Parameters, and BatchNorm's statistics.
  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> values;
    for (const auto& tensors : {model_->parameters(), model_->buffers()})
      for (const auto& [name, tensor] : tensors)
        if (tensor.is_floating_point()) values.push_back(tensor.detach().clone());
    return values;
  }

 private:
  Ledger ledger_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
  RunningMetrics metrics_{classification()};
};

// The difference of two trainings from `begin`, relative to the length of the second's change: the
// largest over all tensors.
double distance(const std::vector<at::Tensor>& begin, const std::vector<at::Tensor>& found,
                const std::vector<at::Tensor>& expected) {
  double most = 0;
  for (size_t i = 0; i < begin.size(); ++i) {
    const double way = (expected[i] - begin[i]).norm().item<double>();
    EXPECT_GT(way, 0) << "tensor " << i << " stays";
    most = std::max(most, (found[i] - expected[i]).norm().item<double>() / way);
  }
  return most;
}

class ReducedStepTest : public testing::CompilingTest {};

TEST_F(ReducedStepTest, AnOverflowSkipsTheStepAndTheNextOnesEqualEager) {
  Recipe recipe = testing::package_recipe("mlp");
  recipe.precision.mode = PrecisionMode::kFp16;
  recipe.precision.growth_interval = 3;
  SteppedModel eager(recipe);
  recipe.train.compiled = testing::compile_package(dir, recipe);
  SteppedModel compiled(recipe);
  const auto begin = compiled.values();
  for (SteppedModel* stepped : {&eager, &compiled}) {
    at::manual_seed(5);
    stepped->set_scale(0x1p40);
    stepped->run(testing::random_batch(recipe, 8));
    EXPECT_EQ(stepped->scale(), 0x1p39);
    const auto skipped = stepped->values();
    for (size_t i = 0; i < begin.size(); ++i) EXPECT_TRUE(at::equal(skipped[i], begin[i])) << i;
    stepped->set_scale(1024);
    for (int i = 0; i < 4; ++i) stepped->run(testing::random_batch(recipe, 8));
    EXPECT_EQ(stepped->scale(), 2048);
  }
  EXPECT_LT(distance(begin, compiled.values(), eager.values()), 0.01);
  EXPECT_LT(std::abs(compiled.loss() / eager.loss() - 1), 1e-3);
}

TEST_F(ReducedStepTest, ConvolutionsInBf16TrainLikeEager) {
  Recipe recipe = testing::package_recipe("simple_cnn");
  SteppedModel exact(recipe);
  recipe.precision.mode = PrecisionMode::kBf16;
  SteppedModel eager(recipe);
  ASSERT_TRUE(recipe.train.channels_last);
  recipe.train.compiled = testing::compile_package(dir, recipe);
  SteppedModel compiled(recipe);
  const auto begin = compiled.values();
  for (SteppedModel* stepped : {&exact, &eager, &compiled}) {
    at::manual_seed(5);
    for (int i = 0; i < 3; ++i) stepped->run(testing::random_batch(recipe, 8));
  }
  const double own = distance(begin, eager.values(), exact.values());
  const double found = distance(begin, compiled.values(), exact.values());
  EXPECT_GT(found, 0.1 * own) << "not bf16";
  EXPECT_LT(found, 2 * own);
  EXPECT_LT(std::abs(compiled.loss() / eager.loss() - 1), 1e-2);
}

}  // namespace
}  // namespace saturate
