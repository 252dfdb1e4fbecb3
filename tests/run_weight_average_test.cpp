// The weight average, compared with torch's AveragedModel (tests/oracles/run_goldens.py).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "run/checkpoint.h"
#include "run/weight_average.h"
#include "saturate/safetensors.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"
#include "tests/reduce_testing.h"
#include "tests/saving_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

class ParametersOnly : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override { return images; }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return tensors; }
  std::vector<NamedTensor> buffers() override { return statistics; }
  void to(const at::Device&, bool) override {}

  void fill(int update) {
    const at::NoGradGuard no_grad;
    for (auto* group : {&tensors, &statistics})
      for (auto& [name, tensor] : *group)
        if (tensor.is_floating_point())
          tensor.copy_(testing::symmetric(name + "." + std::to_string(update), tensor.sizes(), 1));
        else
          tensor.fill_(update);
  }

  std::vector<NamedTensor> tensors = {{"conv", at::zeros({4, 3, 3, 3}).requires_grad_()},
                                      {"fc", at::zeros({5, 37}).requires_grad_()},
                                      {"bias", at::zeros({1}).requires_grad_()}};
  std::vector<NamedTensor> statistics = {{"mean", at::zeros({4})},
                                         {"batches", at::zeros({}, at::kLong)}};
};

TrainOptions ema(double decay) {
  TrainOptions options;
  options.ema = decay;
  return options;
}

TrainOptions swa(double from) {
  TrainOptions options;
  options.swa = from;
  return options;
}

// As AveragedModel(multi_avg_fn=get_swa_multi_avg_fn(), use_buffers=True).
TEST(WeightAverage, StochasticIsTheMeanWithBuffersAndContinuesFromItsState) {
  ParametersOnly model;
  WeightAverage whole(model, swa(0.5)), first(model, swa(0.5)), second(model, swa(0.5));
  EXPECT_TRUE(whole.has_buffers());
  std::map<std::string, at::Tensor> sums;
  for (int update = 0; update < 7; ++update) {
    model.fill(update);
    for (const auto& group : {model.tensors, model.statistics})
      for (const auto& [name, tensor] : group) {
        const at::Tensor now = tensor.detach().to(at::kDouble);
        sums[name] = update == 0 ? now : sums[name] + now;
      }
    if (update == 3) second.load_state(first.state(), "test");
    whole.update();
    (update < 3 ? first : second).update();
  }
  const auto state = whole.state(), resumed = second.state();
  ASSERT_EQ(state.size(), 6u);
  ASSERT_EQ(resumed.size(), 6u);
  for (size_t i = 0; i < state.size(); ++i) {
    const auto& [name, tensor] = state[i];
    EXPECT_TRUE(tensor.equal(resumed[i].tensor)) << name;
    if (name == "batches")
      EXPECT_EQ(tensor.item<int64_t>(), 6);
    else if (name == "n_averaged")
      EXPECT_EQ(tensor.item<int64_t>(), 7);
    else
      EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), sums.at(name) / 7, 0, 1e-6)) << name;
  }
  const at::Tensor mean = model.statistics[0].tensor, now = mean.clone();
  {
    const WeightAverage::Scope averaged(&whole);
    EXPECT_TRUE(at::allclose(mean.to(at::kDouble), sums.at("mean") / 7, 0, 1e-6));
  }
  EXPECT_TRUE(mean.equal(now));
  second.load_state({}, "a checkpoint from before the first update");
  EXPECT_TRUE(second.empty());
}

TEST(WeightAverage, StochasticIsDueAtTheEndsOfEpochsAndOfTheRun) {
  ParametersOnly model;
  const WeightAverage average(model, swa(0.5));
  std::vector<int64_t> due;
  for (int64_t step = 1; step <= 14; ++step) {
    EXPECT_FALSE(average.is_due(step, 14, /*ends_epoch=*/false));
    const bool ends_epoch = step % 4 == 0 || step == 14;
    if (ends_epoch && average.is_due(step, 14, ends_epoch)) due.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{8, 12, 14}));
  const WeightAverage rounded(model, swa(0.55));
  EXPECT_GT(0.55 * 100, 55);
  EXPECT_TRUE(rounded.is_due(55, 100, /*ends_epoch=*/true));
  EXPECT_FALSE(rounded.is_due(54, 100, /*ends_epoch=*/true));
  const WeightAverage moving(model, ema(0.9));
  EXPECT_TRUE(moving.is_due(4, 14, /*ends_epoch=*/false));
  EXPECT_FALSE(moving.is_due(4, 14, /*ends_epoch=*/true)) << "after the step already";
}

TEST(WeightAverage, FollowsTorchAndContinuesFromItsState) {
  ParametersOnly model;
  WeightAverage first(model, ema(0.9)), second(model, ema(0.9));
  for (int update = 0; update < 50; ++update) {
    model.fill(update);
    if (update == 20) second.load_state(first.state(), "test");
    (update < 20 ? first : second).update();
  }
  const auto golden =
      read_safetensors(Env::posix(), testing::source_path("tests/goldens/run/ema.safetensors"));
  ASSERT_EQ(golden.tensors.size(), 3u);
  std::map<std::string, at::Tensor> averages;
  for (const auto& [name, tensor] : second.state()) averages[name] = tensor;
  for (const auto& [name, expected] : golden.tensors)
    EXPECT_TRUE(at::allclose(averages[name], expected, /*rtol=*/0, /*atol=*/1e-7)) << name;
}

TEST(WeightAverage, TheModelUsesItOnlyInsideAScope) {
  ParametersOnly model;
  WeightAverage average(model, ema(0.5));
  const at::Tensor parameter = model.tensors[0].tensor;
  { const WeightAverage::Scope nothing_yet(&average); }
  model.fill(0);
  const at::Tensor at_first = parameter.detach().clone();
  average.update();
  model.fill(1);
  const at::Tensor now = parameter.detach().clone();
  {
    const WeightAverage::Scope averaged(&average);
    EXPECT_TRUE(parameter.equal(at_first));
  }
  EXPECT_TRUE(parameter.equal(now));
  average.update();
  {
    const WeightAverage::Scope averaged(&average);
    EXPECT_TRUE(at::allclose(parameter, at::lerp(at_first, now, 0.5)));
  }
  EXPECT_TRUE(parameter.equal(now));
  EXPECT_TRUE(parameter.requires_grad());
}

TEST(WeightAverage, RefusesAnotherModelsState) {
  ParametersOnly model;
  WeightAverage average(model, ema(0.5));
  const Error error = testing::error_of([&] {
    average.load_state({{"conv", at::zeros({2})}}, "some/file");
  });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(std::string(error.what()).find("tensor conv has shape [2]"), std::string::npos);
}

TEST(WeightAverage, RefusesTheOtherKindsState) {
  ParametersOnly model;
  WeightAverage moving(model, ema(0.5)), stochastic(model, swa(0.5));
  moving.update();
  stochastic.update();
  const Error to_swa =
      testing::error_of([&] { stochastic.load_state(moving.state(), "some/file"); });
  EXPECT_EQ(to_swa.reason(),
            "the checkpoint has the average of train.ema, and the run has train.swa");
  EXPECT_EQ(to_swa.where(), "some/file");
  const Error to_ema =
      testing::error_of([&] { moving.load_state(stochastic.state(), "some/file"); });
  EXPECT_EQ(to_ema.reason(),
            "the checkpoint has the average of train.swa, and the run has train.ema");
}

using testing::file_of;
using testing::run_ranks;
using testing::saving_options;
using testing::TempDir;

// Four epochs of four steps with BatchNorm, saved every second step.
Recipe averaging_recipe() {
  Recipe recipe = testing::small_recipe();
  recipe.model.name = "simple_cnn";
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  recipe.train.epochs = 4;
  recipe.train.swa = 0.5;
  recipe.checkpoint.every_steps = 2;
  recipe.checkpoint.keep = 99;
  recipe.checkpoint.background = false;
  recipe.distributed.timeout_s = 30;
  return recipe;
}

std::map<std::string, at::Tensor> by_name(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, at::Tensor> named;
  for (const auto& [name, tensor] : tensors) named[name] = tensor;
  return named;
}

TEST(StochasticAverage, EqualsTheMeanOfTheWeightsAtEpochEndsAlsoIfResumed) {
  const TempDir dir;
  Env& env = Env::posix();
  const Recipe recipe = averaging_recipe();
  const TrainResult result = Trainer(env, recipe, saving_options(dir / "run")).run();
  ASSERT_EQ(result.steps, 16);
  EXPECT_TRUE(read_checkpoint(env, file_of(dir / "run", 4)).average.empty());
  std::map<std::string, at::Tensor> sums;
  for (const int step : {8, 12, 16})
    for (const auto& [name, tensor] : read_checkpoint(env, file_of(dir / "run", step)).model)
      if (tensor.is_floating_point()) {
        const at::Tensor now = tensor.to(at::kDouble);
        sums[name] = sums.contains(name) ? sums[name] + now : now;
      }
  EXPECT_TRUE(std::ranges::any_of(
      sums, [](const auto& sum) { return sum.first.ends_with("running_mean"); }));
  const auto found = by_name(read_checkpoint(env, file_of(dir / "run", 16)).average);
  for (const auto& [name, sum] : sums)
    EXPECT_TRUE(at::allclose(found.at(name).to(at::kDouble), sum / 3, 1e-5, 1e-6)) << name;

  TrainerOptions options = saving_options(dir / "resumed");
  options.resume = file_of(dir / "run", 10);
  const TrainResult resumed = Trainer(env, recipe, options).run();
  EXPECT_EQ(resumed.steps, 16);
  EXPECT_EQ(resumed.eval->loss, result.eval->loss);
  for (const auto& [name, tensor] : by_name(read_checkpoint(env, resumed.checkpoint).average))
    EXPECT_TRUE(tensor.equal(found.at(name))) << name;
}

TEST(ResumedAverage, MayBeginAndEndButNotBecomeAnother) {
  const TempDir dir;
  Recipe recipe = testing::small_recipe();
  TrainerOptions options = saving_options(dir / "run");
  const auto averaged = [&](double epochs, double decay, double from) {
    recipe.train.epochs = epochs;
    recipe.train.ema = decay;
    recipe.train.swa = from;
    return read_checkpoint(Env::posix(), Trainer(Env::posix(), recipe, options).run().checkpoint)
        .average.size();
  };
  EXPECT_EQ(averaged(1, 0, 0), 0u);
  options.resume = dir / "run";
  EXPECT_GT(averaged(2, 0.9, 0), 0u);
  const Error error = testing::error_of([&] { averaged(3, 0, 0.1); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(error.reason().find("train.swa is 0.1, and was 0.0 in the run to resume"),
            std::string::npos)
      << error.reason();
  EXPECT_EQ(averaged(4, 0, 0), 0u);
  EXPECT_GT(averaged(5, 0, 0.1), 0u);
}

// Their statistics differ during an epoch.
TEST(StochasticAverage, IsEqualOnAllRanks) {
  const TempDir dir;
  std::map<std::string, at::Tensor> ends[2];
  run_ranks(2, [&](Group& group) {
    TrainerOptions options = saving_options(dir / "run");
    options.group = std::shared_ptr<Group>(&group, [](Group*) {});
    Trainer trainer(Env::posix(), averaging_recipe(), options);
    trainer.run();
    for (const auto& [name, tensor] : model_state(trainer.model()))
      ends[group.rank()][name] = tensor.detach().clone();
  });
  const auto saved = by_name(read_checkpoint(Env::posix(), file_of(dir / "run", 16)).average);
  ASSERT_GT(ends[0].size(), 4u);
  for (const auto& [name, tensor] : ends[0]) {
    EXPECT_TRUE(tensor.equal(ends[1].at(name))) << name;
    EXPECT_TRUE(tensor.equal(saved.at(name))) << name;
  }
}

}  // namespace
}  // namespace saturate
