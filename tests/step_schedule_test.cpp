// Schedules, compared with torch.optim.lr_scheduler (tests/oracles/schedule_goldens.py).
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "saturate/data/recipe.h"
#include "saturate/optimizer.h"
#include "saturate/safetensors.h"
#include "saturate/schedule.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::symmetric;

constexpr int64_t kTotal = 1000, kEpoch = 50;

nlohmann::json golden(const std::string& file) {
  std::ifstream stream(testing::source_path("tests/goldens/step/" + file));
  return nlohmann::json::parse(stream);
}

// A golden's options as a recipe, as a user would write it.
ScheduleOptions options_of(const nlohmann::json& keys) {
  std::vector<std::string> settings = {
      "data.source=synth:", "data.eval_source=synth:", "train.epochs=20"};
  for (const auto& [key, value] : keys.items())
    settings.push_back("schedule." + key + "=" + value.dump());
  return parse_recipe("", "golden", settings).schedule;
}

ScheduleOptions named(const std::string& name, double final_lr = 0, double warmup_epochs = 0) {
  ScheduleOptions options;
  options.name = name;
  options.final_lr = final_lr;
  options.warmup_epochs = warmup_epochs;
  return options;
}

TEST(Schedule, FollowsTorchForAThousandSteps) {
  const auto rows = golden("schedules.json");
  ASSERT_EQ(rows.size(), 19u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row["options"].dump());
    const Schedule schedule(options_of(row["options"]), kTotal, kEpoch);
    for (const auto& [step, rate] : row["rates"].items()) {
      const double expected = rate;
      ASSERT_NEAR(schedule.factor(std::stoll(step)), expected, 1e-12 * expected) << step;
    }
    for (size_t epoch = 0; epoch < row.value("momenta", nlohmann::json::array()).size(); ++epoch)
      for (const int64_t within : {int64_t(0), int64_t(31), kEpoch - 1})
        ASSERT_NEAR(schedule.momentum(int64_t(epoch) * kEpoch + within).value(),
                    row["momenta"][epoch].get<double>(), 1e-12)
            << epoch;
    long double sum = 0, weighted = 0;
    for (int64_t step = 0; step < kTotal; ++step) {
      sum += schedule.factor(step);
      weighted += static_cast<long double>(schedule.factor(step)) * step;
    }
    const double expected_sum = row["sum"], expected_weighted = row["weighted"];
    EXPECT_NEAR(double(sum), expected_sum, 1e-12 * expected_sum);
    EXPECT_NEAR(double(weighted), expected_weighted, 1e-12 * expected_weighted);
  }
}

// torch's recursive form loses precision where the rate vanishes, so this tests the closed form.
TEST(Schedule, CosineFallsToZero) {
  const Schedule schedule(named("cosine"), kTotal, kEpoch);
  for (int64_t step = 0; step < kTotal; ++step) {
    const double half = std::acos(-1.0) * double(step) / 2000;
    ASSERT_NEAR(schedule.factor(step), std::cos(half) * std::cos(half), 1e-15);
  }
  EXPECT_DOUBLE_EQ(schedule.factor(kTotal), 0);
}

TEST(Schedule, WarmupReachesOneAtItsLastStep) {
  const Schedule schedule(named("linear", 0.1, 2), 10, 2);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(4), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.55);
}

TEST(Schedule, WarmupLongerThanTheRunIsARamp) {
  EXPECT_DOUBLE_EQ(Schedule(named("cosine", 0, 10), 10, 2).factor(9), 0.5);
}

TEST(Schedule, IsConstantAfterTheLastStep) {
  EXPECT_DOUBLE_EQ(Schedule(named("linear", 0.1), 10, 5).factor(25), 0.1);
  EXPECT_DOUBLE_EQ(Schedule(named("onecycle", 0.1), 10, 5).factor(25), 0.1);
}

// With a warm-up that ends within an epoch, the rate still changes between epochs.
TEST(Schedule, PerEpochKeepsTheRateForAnEpoch) {
  ScheduleOptions options = named("linear", 0, 0.5);
  options.per = SchedulePer::kEpoch;
  const Schedule schedule(options, 40, 4);
  EXPECT_DOUBLE_EQ(schedule.factor(2), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 1);
  for (int64_t step : {4, 5, 6, 7}) EXPECT_DOUBLE_EQ(schedule.factor(step), 1 - 2.0 / 38) << step;
  EXPECT_DOUBLE_EQ(schedule.factor(8), 1 - 6.0 / 38);
}

// 100 steps of OneCycleLR in double precision (tests/oracles/onecycle_goldens.py).
TEST(OneCycle, CyclesMomentumLikeTorch) {
  const auto rows = golden("onecycle.json");
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& row : rows) {
    const std::string name = row["optimizer"];
    SCOPED_TRACE(name);
    Recipe recipe;
    recipe.optimizer.name = name;
    recipe.optimizer.weight_decay = 1e-2;
    recipe.optimizer.beta2 = 0.95;
    recipe.schedule = named("onecycle");
    const auto& cycle = row["cycle"];
    recipe.schedule.rise = cycle.value("pct_start", 0.3);
    recipe.schedule.initial_lr = 1 / cycle.value("div_factor", 25.0);
    recipe.schedule.final_lr = recipe.schedule.initial_lr / 1e4;
    recipe.schedule.momentum_low = cycle.value("base_momentum", 0.85);
    recipe.schedule.momentum_high = cycle.value("max_momentum", 0.95);
    const Schedule schedule(recipe.schedule, 100, 10);

    std::vector<NamedTensor> parameters;
    for (const auto& [key, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {"conv", {8, 3, 3, 3}}, {"fc", {5, 37}}, {"bn", {19}}})
      parameters.push_back({key, symmetric(key, shape, 1).to(at::kDouble).requires_grad_()});
    const auto optimizer =
        make_optimizer(recipe.optimizer, make_parameter_groups(recipe.optimizer, parameters));
    for (int64_t step = 0; step < 100; ++step) {
      const double momentum = schedule.momentum(step).value();
      ASSERT_NEAR(momentum, row["momenta"][size_t(step)].get<double>(), 1e-12) << step;
      for (const auto& [key, tensor] : parameters)
        tensor.mutable_grad() =
            symmetric(key + ".grad." + std::to_string(step), tensor.sizes(), 0.5).to(at::kDouble);
      optimizer->set_momentum(momentum);
      optimizer->step(0.05 * schedule.factor(step));
    }
    const std::string path =
        testing::source_path("tests/goldens/step/onecycle." + name + ".safetensors");
    const auto expected = read_safetensors(Env::posix(), path).tensors;
    ASSERT_EQ(expected.size(), parameters.size());
    for (const auto& [key, tensor] : parameters) {
      const auto golden_of =
          std::find_if(expected.begin(), expected.end(),
                       [&](const NamedTensor& each) { return each.name == key; });
      ASSERT_NE(golden_of, expected.end()) << key;
      const at::Tensor difference = tensor.detach() - golden_of->tensor;
      EXPECT_LT(difference.abs().max().item<double>(), 1e-11) << key;
    }
  }
}

// A partial epoch is a step of the scheduler too.
TEST(OneCycle, PerEpochEndsInTheLastEpoch) {
  ScheduleOptions options = named("onecycle", 0.1);
  options.per = SchedulePer::kEpoch;
  for (const int64_t total : {37, 40}) {
    const Schedule schedule(options, total, 4);
    EXPECT_NEAR(schedule.factor(0), options.initial_lr, 1e-12);
    EXPECT_DOUBLE_EQ(schedule.factor(8), 1) << "the peak, at 0.3 * 10 - 1 epochs";
    EXPECT_DOUBLE_EQ(schedule.factor(11), 1);
    EXPECT_DOUBLE_EQ(schedule.factor(36), 0.1);
  }
}

TEST(OneCycle, DoesNotChangeMomentumIfSwitchedOff) {
  ScheduleOptions options = named("onecycle");
  EXPECT_TRUE(Schedule(options, 100, 10).momentum(3).has_value());
  options.cycle_momentum = false;
  EXPECT_FALSE(Schedule(options, 100, 10).momentum(3).has_value());
  EXPECT_FALSE(Schedule(named("cosine"), 100, 10).momentum(3).has_value());
}

double metric_of(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : double(value);
}

void observe(Schedule& schedule, const nlohmann::json& value) {
  const double metric = metric_of(value);
  schedule.observe(metric, metric);
}

TEST(Plateau, FollowsTorchAlsoAcrossASaveAndALoad) {
  const auto rows = golden("plateau.json");
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row["options"].dump());
    for (const size_t stop : {size_t(0), size_t(7), size_t(33), size_t(60)}) {
      Schedule first(options_of(row["options"]), kTotal, kEpoch), second = first;
      for (size_t i = 0; i < stop; ++i) observe(first, row["metrics"][i]);
      second.load_state(first.state());
      for (size_t i = stop; i < row["metrics"].size(); ++i) {
        observe(second, row["metrics"][i]);
        const double expected = row["factors"][i];
        ASSERT_NEAR(second.factor(100), expected, 1e-12 * expected) << stop << " " << i;
      }
    }
  }
}

TEST(Plateau, ObservesTheChosenMetric) {
  ScheduleOptions options = named("plateau");
  options.patience = 0;
  Schedule by_loss(options, kTotal, kEpoch);
  options.metric = "accuracy";
  Schedule by_accuracy(options, kTotal, kEpoch);
  for (double value : {1.0, 2.0}) {
    by_loss.observe(/*loss=*/value, /*metric=*/value);
    by_accuracy.observe(/*loss=*/value, /*metric=*/value);
  }
  EXPECT_DOUBLE_EQ(by_loss.factor(0), 0.1) << "a rising loss is worse";
  EXPECT_DOUBLE_EQ(by_accuracy.factor(0), 1);
}

TEST(Plateau, OnlyItHasState) {
  Schedule cosine(named("cosine"), kTotal, kEpoch);
  cosine.observe(1, 1);
  EXPECT_TRUE(cosine.state().empty());
  EXPECT_NO_THROW(cosine.load_state({}));
  Schedule plateau(named("plateau"), kTotal, kEpoch);
  try {
    plateau.load_state({{"plateau", at::empty({3}, at::kDouble)}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
  }
}

void expect_refused(const ScheduleOptions& options, const std::string& where) {
  try {
    Schedule(options, 10, 5);
    ADD_FAILURE() << where;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), where);
  }
}

TEST(Schedule, LengthsBelowAStepAreRefused) {
  ScheduleOptions options = named("step");
  options.every_epochs = 0.05;
  expect_refused(options, "schedule.every_epochs");
  options.name = "cosine_restarts";
  expect_refused(options, "schedule.every_epochs");
  options.name = "multistep";
  options.milestones = {0.05, 1};
  expect_refused(options, "schedule.milestones");
  options.name = "onecycle";
  options.rise = 0.1;
  expect_refused(options, "schedule.rise");
  options.rise = 0.5;
  EXPECT_NO_THROW(Schedule(options, 10, 5));
  options.per = SchedulePer::kEpoch;  // of two
  expect_refused(options, "schedule.rise");
}

// A recipe's rules do not see the options of a program's own loop.
TEST(Schedule, ALengthThatIsNotGivenIsRefused) {
  for (const char* name : {"step", "exponential", "cosine_restarts"})
    expect_refused(named(name), "schedule.every_epochs");
  ScheduleOptions options = named("cosine_restarts");
  options.every_epochs = 1;
  EXPECT_NO_THROW(Schedule(options, 10, 5));
  options.restart_mult = 0;
  expect_refused(options, "schedule.restart_mult");
}

TEST(Schedule, UnknownNameIsAUsageError) {
  expect_refused(named("cosin"), "schedule.name");
}

}  // namespace
}  // namespace saturate
