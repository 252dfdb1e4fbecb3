// A weight that a model uses twice, in several processes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "saturate/gradient_reducer.h"
#include "saturate/train_step.h"
#include "tests/language_testing.h"
#include "tests/reduce_testing.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using testing::language_model;
using testing::run_ranks;
using testing::tokens;

struct LanguageCase {
  StepOptions step = {};
  bool sharded = false;
  bool varies = false;  // the samples' lengths, 1 to kContext
};

// The weights after some steps. `group`: null for one process.
std::vector<at::Tensor> trained(const LanguageCase& how, Model& model, Group* group) {
  Ledger ledger(Env::posix());
  OptimizerOptions options;  // not Adam, which would scale up the rounding of zero gradients
  auto groups = make_parameter_groups(options, model.parameters());
  const auto make = [&](std::vector<ParameterGroup> of) {
    return make_optimizer(options, std::move(of));
  };
  const auto optimizer =
      group && how.sharded ? make_sharded_optimizer(*group, groups, make) : make(std::move(groups));
  const auto task = language(testing::kVocabulary, how.varies);
  TrainStep step(model, *task, *optimizer, how.step, ledger);
  std::optional<GradientReducer> reducer;
  if (group) reducer.emplace(*group, model.parameters(), DistributedOptions{});
  if (group) step.use_reducer(*reducer);
  model.set_training(true);
  RunningMetrics metrics(*task);
  for (int i = 0; i < 5; ++i) {
    DeviceBatch batch;
    batch.images = tokens("tokens" + std::to_string(i), 7);
    batch.labels = tokens("next" + std::to_string(i), 7);
    for (int64_t s = 0; how.varies && s < 7; ++s)
      batch.labels[s].slice(0, 1 + (s + i) * 5 % testing::kContext).fill_(kIgnoredLabel);
    batch.global_batch = 7;
    if (group) {
      const at::Tensor own = at::arange(group->rank(), 7, group->world());
      batch.images = batch.images.index_select(0, own);
      batch.labels = batch.labels.index_select(0, own);
    }
    step.run(batch, 0.01, metrics);
  }
  std::vector<at::Tensor> weights;
  for (const auto& each : model.parameters()) weights.push_back(each.tensor.detach().clone());
  return weights;
}

void expect_as_one(const LanguageCase& how) {
  const auto make = [] {
    auto model = language_model();
    testing::fill_all(*model);
    return model;
  };
  const auto alone = make();
  const auto expected = trained({.varies = how.varies}, *alone, nullptr);
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(make());
  models.push_back(make());
  std::vector<std::vector<at::Tensor>> found(2);
  run_ranks(2, [&](Group& group) {
    const auto rank = size_t(group.rank());
    found[rank] = trained(how, *models[rank], &group);
  });
  for (const auto& rank : found)
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE((rank[i] - expected[i]).abs().max().item<double>(), 2e-5)
          << alone->parameters()[i].name;
}

TEST(ReducedLanguage, EqualsOneProcess) {
  expect_as_one({});
}

TEST(ReducedLanguage, WithMicroBatchesOrAShardedOptimizerEqualsOneProcess) {
  expect_as_one({.step = {.micro_batch = 2}});
  expect_as_one({.sharded = true});
}

TEST(ReducedLanguage, OfVaryingLengthsIsWeightedByTokens) {
  expect_as_one({.varies = true});
  expect_as_one({.step = {.micro_batch = 2}, .varies = true});
}

// The embedding's weight is also the last layer's: its gradient must be whole before it is summed.
TEST(ReducedLanguage, WithCheckpointedSegmentsEqualsOneProcess) {
  for (const int segments : {2, 3}) {
    LanguageCase how;
    how.step.checkpoint_segments = segments;
    expect_as_one(how);
  }
}

}  // namespace
}  // namespace saturate
