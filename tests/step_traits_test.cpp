// Each trait of each entry of the tables, compared with the entry's behaviour.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "saturate/data/recipe.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/schedule.h"
#include "step/precision.h"

namespace saturate {
namespace {

bool is_accepted(const std::vector<std::string>& settings) {
  try {
    parse_recipe("[data]\nsource = \"synth:\"\neval_source = \"synth:\"\n", "test", settings);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return false;
  }
}

template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.emplace_back(entry.name);
  return names;
}

OptimizerOptions optimizer_named(const std::string& name, double momentum = 0.9) {
  OptimizerOptions options;
  options.name = name;
  options.weight_decay = 0;
  options.momentum = momentum;
  return options;
}

// The amount that `steps` steps subtract from a matrix.
at::Tensor change(const OptimizerOptions& options, int steps) {
  const at::Tensor matrix = at::ones({3, 4}).requires_grad_();
  const auto optimizer =
      make_optimizer(options, make_parameter_groups(options, {{"matrix", matrix}}));
  for (int step = 0; step < steps; ++step) {
    const at::Tensor counted = at::arange(1, 13, at::kFloat).reshape({3, 4});
    matrix.mutable_grad() = step % 2 == 0 ? counted : (counted * counted - 20);
    optimizer->step(0.01);
  }
  return 1 - matrix.detach();
}

class OptimizerTraitsOf : public ::testing::TestWithParam<std::string> {};

TEST_P(OptimizerTraitsOf, MatchTheBehaviour) {
  const std::string& name = GetParam();
  const OptimizerTraits traits = find_entry(optimizers(), name, "test").traits;
  const at::Tensor low = change(optimizer_named(name, 0.5), 2);
  EXPECT_EQ(traits.has_momentum, !at::equal(low, change(optimizer_named(name, 0.9), 2)));
  const at::Tensor sizes = change(optimizer_named(name), 1).abs();
  EXPECT_EQ(traits.is_adaptive, at::allclose(sizes, sizes.mean().expand({3, 4}), 1e-3));
  EXPECT_EQ(traits.nesterov_needs_momentum,
            !is_accepted({"optimizer.name=" + name, "optimizer.momentum=0"}));
  for (const bool fused : {true, false}) {
    OptimizerOptions options = optimizer_named(name);
    options.fused = fused;
    const at::Tensor matrix = at::ones({3, 4}).requires_grad_();
    const auto optimizer =
        make_optimizer(options, make_parameter_groups(options, {{"matrix", matrix}}));
    EXPECT_EQ(optimizer->read_rate_from(at::full({}, 0.01, at::kDouble)),
              fused && traits.fused != FusedUpdate::kNone);
  }
}

// Rules, which are compiled without torch, expand the rows separately.
TEST_P(OptimizerTraitsOf, AreEqualForRules) {
  const OptimizerTraits traits = find_entry(optimizers(), GetParam(), "test").traits;
  const OptimizerTraits of_rules = traits_of(optimizer_named(GetParam()));
  EXPECT_EQ(of_rules.has_momentum, traits.has_momentum);
  EXPECT_EQ(of_rules.is_adaptive, traits.is_adaptive);
  EXPECT_EQ(of_rules.nesterov_needs_momentum, traits.nesterov_needs_momentum);
  EXPECT_EQ(of_rules.fused, traits.fused);
}

INSTANTIATE_TEST_SUITE_P(Optimizer, OptimizerTraitsOf, ::testing::ValuesIn(names_of(optimizers())),
                         [](const auto& tested) { return tested.param; });

TEST(OptimizerRules, AMeanThatNeverChangesIsRefused) {
  EXPECT_TRUE(is_accepted({"optimizer.name=adamw", "optimizer.betas=[0, 0.9999]"}));
  EXPECT_FALSE(is_accepted({"optimizer.name=adamw", "optimizer.betas=[1, 0.999]"}));
  EXPECT_FALSE(is_accepted({"optimizer.name=adamw", "optimizer.betas=[0.9, 1]"}));
  for (const std::string name : {"sgd", "adam"})
    EXPECT_EQ(is_accepted({"optimizer.name=" + name, "schedule.name=onecycle",
                           "schedule.cycle_momentum=[0.85, 1]"}),
              name == "sgd");
}

TEST(Precision, AutoIsBf16OnGpusThatComputeInIt) {
  for (const char* architecture : {"sm_80", "sm_90", "sm_100", ""})
    EXPECT_TRUE(gpu_has_bf16(architecture)) << architecture;
  EXPECT_FALSE(gpu_has_bf16("sm_75"));
}

constexpr int64_t kEpoch = 10, kTotal = 100;

ScheduleOptions schedule_named(const std::string& name) {
  ScheduleOptions options;
  options.name = name;
  options.every_epochs = 3;
  options.milestones = {4};
  options.patience = 0;
  return options;
}

std::vector<double> factors(const ScheduleOptions& options) {
  const Schedule schedule(options, kTotal, kEpoch);
  std::vector<double> factors;
  for (int64_t step = 0; step < kTotal; ++step) factors.push_back(schedule.factor(step));
  return factors;
}

bool can_be_below_a_step(ScheduleOptions options) {
  options.every_epochs = 0.01;
  try {
    factors(options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

class ScheduleTraitsOf : public ::testing::TestWithParam<std::string> {};

TEST_P(ScheduleTraitsOf, MatchTheBehaviour) {
  const ScheduleOptions options = schedule_named(GetParam());
  const ScheduleTraits traits = traits_of(options);
  const std::vector<double> usual = factors(options);
  ScheduleOptions other = options;
  other.every_epochs = 4;
  EXPECT_EQ(traits.every != EveryEpochs::kUnused, factors(other) != usual);
  const bool in_steps = traits.every == EveryEpochs::kDrops || traits.every == EveryEpochs::kPeriod;
  EXPECT_EQ(in_steps, !can_be_below_a_step(options));
  if (in_steps) {
    EXPECT_EQ(traits.every == EveryEpochs::kDrops, usual[0] == usual[29]);
    EXPECT_NE(usual[29], usual[30]);
  }
  other = options;
  other.milestones = {5};
  EXPECT_EQ(traits.has_milestones, factors(other) != usual);
  Schedule schedule(options, kTotal, kEpoch);
  EXPECT_EQ(traits.is_cycle, schedule.momentum(0).has_value());
  EXPECT_EQ(traits.is_cycle, usual[0] < usual[20]);
  schedule.observe(1, 1);
  for (int i = 0; i < 3; ++i) schedule.observe(2, 0);
  EXPECT_EQ(traits.needs_evaluations, schedule.factor(0) != usual[0]);
}

INSTANTIATE_TEST_SUITE_P(Schedule, ScheduleTraitsOf, ::testing::ValuesIn(names_of(schedules())),
                         [](const auto& tested) { return tested.param; });

TEST(ModelTraitsOf, DecideWhetherThereIsAFile) {
  for (const auto& entry : models()) {
    ModelOptions options;
    options.name = entry.name;
    EXPECT_EQ(traits_of(options).is_file, entry.traits.is_file) << entry.name;
    const std::string name = "model.name=" + options.name;
    EXPECT_EQ(is_accepted({name, "model.file=x.pt"}), entry.traits.is_file) << entry.name;
    EXPECT_EQ(is_accepted({name}), !entry.traits.is_file) << entry.name;
  }
}

TEST(Traits, OfAnUnknownNameAreTheDefaults) {
  EXPECT_FALSE(traits_of(optimizer_named("none")).has_momentum);
  EXPECT_FALSE(traits_of(schedule_named("none")).needs_evaluations);
  EXPECT_TRUE(is_accepted({"optimizer.name=none", "schedule.name=none", "model.name=none"}));
}

}  // namespace
}  // namespace saturate
