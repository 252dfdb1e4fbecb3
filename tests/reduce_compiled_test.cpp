// All-reducing the gradients of a compiled step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>

#include "saturate/gradient_reducer.h"
#include "saturate/train_step.h"
#include "step/compiled_step.h"
#include "tests/compiled_testing.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::run_ranks;
using testing::symmetric;

constexpr int kWorld = 2;

// The formula's values, for `count` images of each rank.
DeviceBatch ranks_batch(int rank, int step, int64_t count) {
  DeviceBatch batch;
  const at::Tensor all =
      symmetric("images." + std::to_string(step), {kWorld * count, 3, 16, 16}, 2);
  batch.images = all.narrow(0, rank * count, count).contiguous(at::MemoryFormat::ChannelsLast);
  batch.labels = (at::arange(count) + rank) % 10;
  batch.global_batch = kWorld * count;
  return batch;
}

std::unique_ptr<Model> filled_network() {
  ModelOptions options;
  options.name = "simple_cnn";
  options.width = 0.25;
  auto model = make_model(options, {10, 16, Env::posix()});
  for (const auto& tensors : {model->parameters(), model->buffers()})
    for (const auto& named : tensors) testing::fill(named);
  model->to(at::kCPU, /*channels_last=*/true);
  model->set_training(true);
  return model;
}

std::vector<at::Tensor> tensors_of(Model& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model.parameters()) tensors.push_back(tensor);
  return tensors;
}

// Gradients after three steps of two micro-batches each; the sum includes the first one's
// gradients.
std::vector<at::Tensor> summed(Group& group, const DistributedOptions& options, bool at_once) {
  const auto model = filled_network();
  const auto parameters = tensors_of(*model);
  GradientReducer reducer(group, model->parameters(), options);
  for (int i = 0; i < 3; ++i) {
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    const auto loss = [&](int part) {
      return model->forward(ranks_batch(group.rank(), 2 * i + part, 4).images).square().mean();
    };
    reducer.backward(loss(0), /*reduce=*/false);
    reducer.before_forward();
    if (at_once)
      reducer.sum(parameters, torch::autograd::grad({loss(1)}, parameters));
    else
      reducer.backward(loss(1), /*reduce=*/true);
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad().clone());
  return gradients;
}

TEST(GradientReducer, AllReducesExistingGradientsLikeBackward) {
  for (const Compress compress : {Compress::kNone, Compress::kBf16}) {
    for (const bool find_unused : {false, true}) {
      DistributedOptions options;
      options.compress = compress;
      options.find_unused = find_unused;
      options.bucket_mb = 0.01;
      run_ranks(kWorld, [&](Group& group) {
        const auto found = summed(group, options, true), expected = summed(group, options, false);
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_TRUE(at::equal(found[i], expected[i])) << i << " of rank " << group.rank();
      });
    }
  }
}

TEST(GradientReducer, SkipsTheAllReduceWhileDisabled) {
  run_ranks(kWorld, [&](Group& group) {
    const auto model = filled_network();
    const auto parameters = tensors_of(*model);
    GradientReducer reducer(group, model->parameters(), {});
    int step = 0;
    for (const bool enabled : {true, false, false, true, false, true}) {
      SCOPED_TRACE(step);
      const at::Tensor images = ranks_batch(group.rank(), step, 4).images;
      const auto loss = [&] { return model->forward(images).square().mean(); };
      auto expected = torch::autograd::grad({loss()}, parameters);
      for (const auto& gradient : expected)
        if (enabled) group.sum(gradient);
      for (const auto& parameter : parameters) parameter.mutable_grad().reset();
      reducer.set_enabled(enabled);
      reducer.before_forward();
      if (step++ % 3 == 2)
        reducer.sum(parameters, torch::autograd::grad({loss()}, parameters));
      else
        reducer.backward(loss(), /*reduce=*/true);
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(at::allclose(parameters[i].grad(), expected[i], 1e-5, 1e-6)) << i;
    }
  });
}

// Parameters and BatchNorm's statistics after ten steps of two micro-batches; the last one's batch
// is smaller.
std::vector<at::Tensor> after_training(Group& group, const Recipe& recipe) {
  const auto model = filled_network();
  Ledger ledger(Env::posix());
  const auto optimizer = make_optimizer(
      recipe.optimizer, make_parameter_groups(recipe.optimizer, model->parameters()));
  StepOptions options;
  options.micro_batch = 8;
  options.label_smoothing = recipe.train.label_smoothing;
  options.clip_norm = 0.5;
  TrainStep step(*model, classification(), *optimizer, options, ledger);
  GradientReducer reducer(group, model->parameters(), recipe.distributed);
  step.use_reducer(reducer);
  if (!recipe.train.compiled.empty())
    step.use_compiled(std::make_unique<CompiledStep>(Env::posix(), recipe, *model, kWorld));
  RunningMetrics metrics(classification());
  for (int i = 0; i < 10; ++i)
    step.run(ranks_batch(group.rank(), i, i == 9 ? 5 : 16), 0.05, metrics);
  EXPECT_EQ(step.first_uncompiled(), recipe.train.compiled.empty() ? 0 : 5);
  auto tensors = tensors_of(*model);
  for (const auto& [name, buffer] : model->buffers()) tensors.push_back(buffer);
  return tensors;
}

TEST(CompiledStepOfProcesses, TrainsLikeAnEagerStep) {
  if (testing::compiling_python().empty()) GTEST_SKIP() << testing::kNoPython;
  const testing::TempDir dir;
  Recipe recipe = testing::package_recipe("simple_cnn");
  recipe.model.width = 0.25;
  recipe.train.batch = 32;
  recipe.train.accumulate = 2;
  const std::string package = testing::compile_package(dir, recipe, "--processes 2");
  const Error error = testing::error_of([&] {
    Recipe alone = recipe;
    alone.train.compiled = package;
    CompiledStep step(Env::posix(), alone, *filled_network());
  });
  EXPECT_NE(error.reason().find("micro-batches of 8 samples, not 16"), std::string::npos)
      << error.reason();
  std::vector<std::vector<at::Tensor>> found(kWorld), expected(kWorld);
  run_ranks(kWorld, [&](Group& group) {
    expected[size_t(group.rank())] = after_training(group, recipe);
    Recipe compiled = recipe;
    compiled.train.compiled = package;
    found[size_t(group.rank())] = after_training(group, compiled);
  });
  for (size_t rank = 0; rank < kWorld; ++rank)
    for (size_t i = 0; i < found[rank].size(); ++i)
      EXPECT_LE((found[rank][i] - expected[rank][i]).abs().max().item<double>(), 1e-5) << i;
}

}  // namespace
}  // namespace saturate
