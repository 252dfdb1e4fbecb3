// What the records of a run say of its speed.
#include "run/run_log.h"

#include <gtest/gtest.h>

#include "saturate/fault_env.h"
#include "tests/data_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class RunLogTest : public ::testing::Test {
 protected:
  RunLogTest() { env.use_fake_clock(); }

  RunLog::Plan plan(const RunPosition& begin) {
    return {dir.path(), Progress::Style::kSilent, /*epoch_steps=*/4, /*total_steps=*/8, begin};
  }
  // The only record so far.
  MetricsRecord record() {
    return from_json_line(testing::read_text(dir / "metrics.jsonl")).value();
  }

  const testing::TempDir dir;
  const Recipe recipe = testing::small_recipe("[watch]\ntensorboard = false\n");
  const Metrics hundred = {100, 1.5, 0.5, std::nullopt, {}};
  FaultEnv env{Env::posix()};
  Ledger ledger{env};
};

TEST_F(RunLogTest, AnEpochThatWasResumedIsAsFastAsItsOwnPart) {
  const RunPosition begin{3, 0, 3, 75, 9.0}, end{4, 1, 0, 100, 0};
  RunLog log(env, recipe, plan(begin), ledger);
  log.begin_epoch(begin);
  env.sleep_ns(kSecond);
  log.epoch(end, hundred, 0.1);
  EXPECT_EQ(record().loss, 1.5);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 25);
}

TEST_F(RunLogTest, AnEvaluationOfTwoWeightsSeesEachImageTwice) {
  RunLog log(env, recipe, plan({}), ledger);
  log.evaluation({4, 1, 0, 100, 0}, {4, hundred, hundred}, /*seconds=*/2);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 100);
}

TEST_F(RunLogTest, TelemetryOfOneOfSeveralProcessesIsOfItsOwnImages) {
  TelemetryLog telemetry(Env::posix(), {});
  telemetry.set_flop_per_sample(1e12);
  RunLog::Plan of_two = plan({});
  of_two.processes = 2;
  RunLog log(env, recipe, of_two, ledger, &telemetry);
  log.begin_epoch({});
  env.sleep_ns(kSecond);
  log.steps({4, 1, 0, 100, 0}, hundred, 0.1);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 100);
  EXPECT_DOUBLE_EQ(record().telemetry.value().tflop_per_s.value(), 50);
}

}  // namespace
}  // namespace saturate
