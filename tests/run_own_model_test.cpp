// Models and losses that a program adds.
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "saturate/batch_norm.h"
#include "saturate/module_model.h"
#include "saturate/train_step.h"
#include "tests/data_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::quiet_options;
using testing::small_recipe;
using testing::TempDir;

// Squared error to the one-hot label.
class Squares : public torch::nn::Module {
 public:
  Squares(int64_t inputs, int64_t classes)
      : fc_(register_module("fc", torch::nn::Linear(inputs, classes))) {}
  at::Tensor forward(const at::Tensor& images) { return fc_(images.flatten(1)); }
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) {
    return at::mse_loss(logits, at::one_hot(labels, logits.size(1)).to(at::kFloat));
  }

 private:
  torch::nn::Linear fc_;
};

// The same network, without trainable parameters.
class AlwaysSeven : public Squares {
 public:
  using Squares::Squares;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) {
    return Squares::loss(logits, labels) * 0 + 7;
  }
};

// Norm is torch's BatchNorm2d or ours.
template <class Norm, bool kAffine = true>
class Normalised : public Squares {
 public:
  Normalised(int64_t inputs, int64_t classes) : Squares(inputs, classes) {
    register_module("norm", norm_);
  }
  at::Tensor forward(const at::Tensor& images) { return Squares::forward(norm_(images)); }

 private:
  Norm norm_{torch::nn::BatchNormOptions(3).affine(kAffine)};
};

template <class Module>
std::unique_ptr<Model> make(const ModelOptions&, const ModelInput& input) {
  return make_module_model<Module>(int64_t(3) * input.size.area(), input.outputs);
}

Recipe own_recipe(const std::string& name) {
  [[maybe_unused]] static const bool once = [] {
    add_model("squares", "of a test", make<Squares>);
    add_model("always_seven", "of a test", make<AlwaysSeven>);
    add_model("torch_norm", "of a test", make<Normalised<torch::nn::BatchNorm2d>>);
    add_model("bare_norm", "of a test", make<Normalised<BatchNorm2d, false>>);
    add_model("our_norm", "of a test", make<Normalised<BatchNorm2d>>);
    return true;
  }();
  Recipe recipe = small_recipe();
  recipe.model.name = name;
  return recipe;
}

// Members that the compiler rejects or accepts as a module's loss.
class LossUnseen : public torch::nn::Module {
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels);
};
struct LossInherited : LossUnseen {};
struct LossByReference : torch::nn::Module {
  at::Tensor loss(at::Tensor& logits, at::Tensor& labels);
};
struct LossOfFinal final : torch::nn::Module {
  at::Tensor loss(at::Tensor& logits, at::Tensor& labels);
};
struct LossWithWeights : torch::nn::Module {
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights);
};
struct LossOfNothing : torch::nn::Module {
  void loss(const at::Tensor& logits, const at::Tensor& labels);
};
struct LossAsNumber : torch::nn::Module {
  double loss = 0;
};
struct LossByValue : torch::nn::Module {
  at::Tensor loss(at::Tensor logits, at::Tensor labels) const;
};
struct FinalWithoutLoss final : torch::nn::Module {};
class LossUnseenOfFinal final : public torch::nn::Module {
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels);
};
static_assert(kLossIsUsable<torch::nn::Module>);
// Whether a final class has a private member cannot be found: neither is accepted.
static_assert(!kLossIsUsable<FinalWithoutLoss> && !kLossIsUsable<LossUnseenOfFinal>);
static_assert(!kWantedImagesAreUsable<FinalWithoutLoss> && !kPerPixelIsUsable<FinalWithoutLoss>);
static_assert(HasLoss<Squares> && HasLoss<LossByValue> && kLossIsUsable<LossByValue>);
static_assert(!kLossIsUsable<LossUnseen> && !kLossIsUsable<LossInherited>);
static_assert(!kLossIsUsable<LossByReference> && !kLossIsUsable<LossOfFinal>);
static_assert(!kLossIsUsable<LossWithWeights> && !kLossIsUsable<LossOfNothing>);
static_assert(!kLossIsUsable<LossAsNumber>);

class WantsUnseen : public torch::nn::Module {
  static constexpr int64_t kWantedImages = 5;
};
struct WantsWithoutPrepare : torch::nn::Module {
  static constexpr int64_t kWantedImages = 5;
};
struct WantsImages : WantsWithoutPrepare {
  void prepare(const at::Tensor& images);
};
class PerPixelUnseen : public torch::nn::Module {
  static constexpr bool kPerPixel = true;
};
static_assert(!kWantedImagesAreUsable<WantsUnseen> && !kWantedImagesAreUsable<WantsWithoutPrepare>);
static_assert(kWantedImagesAreUsable<WantsImages> && kWantedImagesAreUsable<torch::nn::Module>);
static_assert(!kPerPixelIsUsable<PerPixelUnseen> && kPerPixelIsUsable<torch::nn::Module>);

TEST(OwnLoss, IsMinimisedByTheStep) {
  const auto model = make_module_model<Squares>(12, 3);
  const at::Tensor weight = model->parameters()[0].tensor, bias = model->parameters()[1].tensor;
  const at::Tensor start = weight.detach().clone(), start_bias = bias.detach().clone();
  OptimizerOptions sgd;
  sgd.momentum = sgd.weight_decay = 0;
  sgd.nesterov = false;
  const auto optimizer = make_optimizer(sgd, make_parameter_groups(sgd, model->parameters()));
  Ledger ledger(Env::posix());
  const auto task = make_task({}, 3, model->facets());
  TrainStep step(*model, *task, *optimizer, {.micro_batch = 2}, ledger);
  const DeviceBatch batch{at::randn({5, 3, 2, 2}), at::tensor({0, 1, 2, 2, 0}, at::kLong), {}};
  RunningMetrics running(*task);
  step.run(batch, /*lr=*/0.5, running);

  const at::Tensor x = batch.images.flatten(1);
  const at::Tensor error = at::linear(x, start, start_bias) - at::one_hot(batch.labels, 3);
  const at::Tensor gradient = error.t().matmul(x) * (2. / (5 * 3));
  EXPECT_TRUE(at::allclose(weight.detach(), start - gradient * 0.5, 1e-5, 1e-6));
  EXPECT_NEAR(running.read().loss, error.square().mean().item<double>(), 1e-6);
}

TEST(OwnLoss, IsReportedInTrainingAndEvaluation) {
  const TempDir dir;
  Recipe recipe = own_recipe("always_seven");
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  const TrainResult result = Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.train->loss, 7);
  EXPECT_EQ(result.eval->loss, 7);
}

TEST(OwnLoss, DoesNotSupportLabelSmoothing) {
  const TempDir dir;
  Recipe recipe = own_recipe("squares");
  recipe.train.label_smoothing = 0.1;
  const Error error = error_of([&] { Trainer(Env::posix(), recipe, quiet_options(dir.path())); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.reason(), "the model's own loss does not support label smoothing");
}

TEST(OwnModel, IsRefusedIfItsStatisticsCannotBeSynchronised) {
  const TempDir dir;
  Recipe recipe = own_recipe("torch_norm");
  recipe.optimizer.lr = 0.001;
  const auto train = [&] {
    Trainer(Env::posix(), recipe, quiet_options(dir.path() + "/" + recipe.model.name)).run();
  };
  for (const char* name : {"torch_norm", "bare_norm"}) {
    recipe.model.name = name;
    recipe.distributed.sync_bn = false;
    train();
    recipe.distributed.sync_bn = true;
    const Error error = error_of(train);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.reason(),
              fmt::format("BatchNorm norm of {} cannot synchronise its statistics", name));
  }
  recipe.model.name = "our_norm";
  EXPECT_NO_THROW(train());
}

TEST(OwnModel, ANameCanBeRegisteredOnlyOnce) {
  const Error error = error_of([] { add_model("resnet18", "another", make<Squares>); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.reason(), "there is a model \"resnet18\" already");
}

}  // namespace
}  // namespace saturate
