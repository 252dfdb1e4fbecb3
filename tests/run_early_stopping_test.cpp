// Early stopping, compared with Lightning's (tests/oracles/run_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "saturate/early_stopping.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/paths.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

double value_of(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::stod(value.get<std::string>());
}

TrainOptions options_of(MonitorMode mode, int patience, double min_delta = 0) {
  TrainOptions options;
  options.monitor_mode = mode;
  options.early_stop = patience;
  options.min_delta = min_delta;
  return options;
}

// Where it stops; empty if it does not.
std::optional<size_t> stop_of(EarlyStopping& stopping, const nlohmann::json& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    stopping.observe(value_of(values[i]), int64_t(i));
    if (stopping.should_stop()) return i;
  }
  return std::nullopt;
}

TEST(EarlyStopping, StopsWhereLightningDoes) {
  std::ifstream file(testing::source_path("tests/goldens/run/early_stopping.json"));
  const auto cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 36u);
  for (const auto& golden : cases) {
    const auto mode = golden["mode"] == "max" ? MonitorMode::kMax : MonitorMode::kMin;
    EarlyStopping stopping(options_of(mode, golden["patience"], golden["min_delta"]));
    const auto stop = stop_of(stopping, golden["values"]);
    EXPECT_EQ(stop ? nlohmann::json(*stop) : nlohmann::json(), golden["stop_at"]) << golden;
    const auto best = stopping.state().best;
    EXPECT_EQ(best ? nlohmann::json(*best) : nlohmann::json(), golden["best"]) << golden;
  }
}

TEST(EarlyStopping, ContinuesFromItsState) {
  const TrainOptions options = options_of(MonitorMode::kMax, 3);
  EarlyStopping whole(options), first(options), second(options);
  const std::vector<double> values = {1, 5, 4, 4, 3};
  for (size_t i = 0; i < values.size(); ++i) whole.observe(values[i], int64_t(i));
  for (size_t i = 0; i < 3; ++i) first.observe(values[i], int64_t(i));
  second.load(first.state());
  for (size_t i = 3; i < values.size(); ++i) {
    EXPECT_FALSE(second.should_stop());
    second.observe(values[i], int64_t(i));
  }
  EXPECT_TRUE(whole.should_stop());
  EXPECT_TRUE(second.should_stop());
  EXPECT_EQ(second.state().best, 5);
  EXPECT_EQ(second.state().best_step, 1);
}

TEST(EarlyStopping, WithoutPatienceItOnlyRecordsTheBest) {
  EarlyStopping stopping(options_of(MonitorMode::kMin, 0));
  EXPECT_TRUE(stopping.observe(2, 10));
  for (int step = 11; step < 100; ++step) EXPECT_FALSE(stopping.observe(3, step));
  EXPECT_FALSE(stopping.observe(std::nan(""), 100));
  EXPECT_FALSE(stopping.should_stop());
  EXPECT_EQ(stopping.state().best_step, 10);
}

TEST(EarlyStopping, ALowerLossAndAHigherAccuracyAreBetter) {
  TrainOptions options;
  options.monitor = "eval_loss";
  EarlyStopping loss(options);
  loss.observe(1, 1);
  EXPECT_TRUE(loss.observe(0.5, 2));
  options.monitor = "train_accuracy";
  EarlyStopping accuracy(options);
  accuracy.observe(0.5, 1);
  EXPECT_TRUE(accuracy.observe(1, 2));
  options.monitor_mode = MonitorMode::kMin;
  EarlyStopping forced(options);
  forced.observe(1, 1);
  EXPECT_TRUE(forced.observe(0.5, 2));
}

// r2 of one sample is not known, which is not a run that diverges.
TEST(EarlyStopping, AnUnknownMetricNeitherStopsARunNorIsItsBest) {
  const testing::TempDir dir;
  const Recipe recipe = parse_recipe(
      "[data]\nsource = \"synth-table:count=40\"\neval_source = "
      "\"synth-table:count=1,split=test\"\n"
      "[model]\nname = \"mlp\"\n[schedule]\nname = \"plateau\"\nmetric = \"r2\"\npatience = 1\n"
      "[train]\nbatch = 20\nepochs = 6\nmonitor = \"eval_r2\"\nearly_stop = 2\ndevice = \"cpu\"\n",
      "test", {});
  const TrainResult result =
      Trainer(Env::posix(), recipe, testing::saving_options(dir / "run")).run();
  EXPECT_EQ(result.steps, 12);
  EXPECT_TRUE(std::isnan(result.eval->value("r2").value()));
  EXPECT_FALSE(result.best.best);
  std::string rates;
  for (const auto& record : testing::read_metrics(dir / "run"))
    if (record["kind"] == "epoch") rates += record["lr"].dump() + " ";
  const std::string first = rates.substr(0, rates.find(' ') + 1);
  EXPECT_EQ(rates, first + first + first + first + first + first);
}

}  // namespace
}  // namespace saturate
