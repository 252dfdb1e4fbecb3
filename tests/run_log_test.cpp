// The speed in the records of a run.
#include "run/run_log.h"

#include <gtest/gtest.h>

#include <sstream>

#include "record/telemetry_log.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/trainer_testing.h"
#include "trace/device_phases.h"

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
  const RunPosition end{4, 1, 0, 100, 0};
  const Metrics hundred = {100, 1.5, {{"accuracy", 0.5}}};
  FaultEnv env{Env::posix()};
  Ledger ledger{env};
};

TEST_F(RunLogTest, AResumedEpochsSpeedIsOfItsOwnPart) {
  const RunPosition begin{3, 0, 3, 75, 9.0};
  RunLog log(env, recipe, plan(begin), ledger);
  log.begin();
  log.begin_epoch(begin);
  env.sleep_ns(kSecond);
  log.epoch(end, hundred, 0.1);
  EXPECT_EQ(record().loss, 1.5);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 25);
}

TEST_F(RunLogTest, AnEvaluationOfTwoSetsOfWeightsCountsEachImageTwice) {
  RunLog log(env, recipe, plan({}), ledger);
  log.begin();
  log.evaluation({end, {4, hundred, hundred}, /*counts=*/true}, /*seconds=*/2);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 100);
}

TEST(Summary, ShowsTheNetworksPartOfTheWaitIfThereIsAny) {
  TrainResult result;
  result.wall_s = 4;
  result.steps = result.steps_here = 100;
  result.phases.seconds[size_t(Phase::kWait)] = 3;
  EXPECT_EQ(format_summary(result).find("network"), std::string::npos);
  result.phases.network_wait = 2;
  EXPECT_NE(format_summary(result).find("\n    network          2.00       20.00    50.0%\n"),
            std::string::npos)
      << format_summary(result);
}

TEST(Summary, NamesTheReasonOfAnEarlyStop) {
  TrainResult result;
  result.end = RunEnd::kEarlyStop;
  result.steps = 8;
  result.best.best_step = 4;
  EXPECT_TRUE(format_summary(result).starts_with(
      "stopped early at step 8: no better value of train.monitor since step 4\n"));
  result.best.not_finite = true;
  EXPECT_TRUE(format_summary(result).starts_with(
      "stopped early at step 8: train.monitor is not finite. Lower optimizer.lr\n"));
  result.was_finished = true;
  EXPECT_NE(format_summary(result).find("start a new run with a lower optimizer.lr\n"),
            std::string::npos);
  result.best.not_finite = false;
  EXPECT_NE(format_summary(result).find("Raise train.early_stop to continue\n"), std::string::npos);
}

TEST_F(RunLogTest, AnEvaluationWithoutSamplesHasNoLoss) {
  TrainResult result;
  result.was_finished = true;
  result.eval = Metrics{};
  const std::string summary = format_summary(result);
  EXPECT_NE(summary.find("held out    no result: there were no images\n"), std::string::npos)
      << summary;
  RunLog log(env, recipe, plan({}), ledger);
  log.begin();
  log.evaluation({end, {4, Metrics{}, {}}, /*counts=*/true}, /*seconds=*/2);
  EXPECT_FALSE(record().loss);
}

TEST_F(RunLogTest, ADivergingLossIsShort) {
  Metrics huge = hundred;
  huge.loss = 3.4e38;
  RunLog::Plan shown = plan({});
  shown.style = Progress::Style::kLines;
  ::testing::internal::CaptureStderr();
  {
    RunLog log(env, recipe, shown, ledger);
    log.begin();
    log.begin_epoch({});
    env.sleep_ns(kSecond);
    log.epoch(end, huge, 0.1);
    log.evaluation({end, {4, huge, huge}, /*counts=*/true}, /*seconds=*/2);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  size_t found = 0;
  for (size_t at = 0; (at = said.find("loss 3.4e+38  acc", at)) != std::string::npos; ++at) ++found;
  EXPECT_EQ(found, 3u) << said;
  TrainResult result;
  result.was_finished = true;
  result.eval = result.train = huge;
  result.best.best = huge.loss;
  const std::string summary = format_summary(result);
  EXPECT_NE(summary.find("held out    accuracy 50.00%  loss 3.4e+38  on 100 images\n"),
            std::string::npos)
      << summary;
  EXPECT_NE(summary.find("best        3.4e+38 at step"), std::string::npos) << summary;
}

// On the test's clock; some of the work is not done yet.
class ClockedMark : public TimeMark {
 public:
  ClockedMark(Env& env, const bool& done) : env_(env), done_(done) {}
  void place() override { at_ns_ = env_.now_ns(); }
  bool reached() const override { return done_; }
  double seconds_since(const TimeMark& earlier) const override {
    return double(at_ns_ - static_cast<const ClockedMark&>(earlier).at_ns_) * 1e-9;
  }

 private:
  Env& env_;
  const bool& done_;
  int64_t at_ns_ = 0;
};

TEST_F(RunLogTest, StreamsAreTimedSinceTheLastRecordUpToTheLastMark) {
  bool done = false;
  StreamClock streams([&] { return std::make_unique<ClockedMark>(env, done); });
  const auto work = [&](int seconds) {
    const StreamClock::Work busy(&streams, kStepStream);
    env.sleep_ns(seconds * kSecond);
  };
  RunLog log(env, recipe, plan({}), ledger, &streams);
  log.begin();
  log.begin_epoch({});
  work(2);
  log.steps({1, 0, 1, 25, 0}, hundred, 0.1);
  env.sleep_ns(kSecond);
  work(4);
  done = true;
  log.steps({2, 0, 2, 50, 0}, hundred, 0.1);
  work(1);
  log.steps({3, 0, 3, 75, 0}, hundred, 0.1);
  log.end({{3, 0, 3, 75, 0}, RunEnd::kDone, std::nullopt});
  std::istringstream lines(testing::read_text(dir / "metrics.jsonl"));
  std::vector<std::vector<StreamTime>> found;
  for (std::string line; std::getline(lines, line);)
    found.push_back(from_json_line(line).value().streams);
  const std::vector<std::pair<double, double>> expected = {{0, 0}, {6, 1}, {1, 0}, {7, 1}};
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), 1u);
    EXPECT_EQ(found[i][0].stream, "step");
    EXPECT_DOUBLE_EQ(found[i][0].busy_s, expected[i].first) << i;
    EXPECT_DOUBLE_EQ(found[i][0].idle_s, expected[i].second) << i;
  }
}

TEST_F(RunLogTest, DevicePhasesAreOfTheRecordTheEpochAndTheRun) {
  const bool done = true;
  DevicePhases device([&] { return std::make_unique<ClockedMark>(env, done); });
  RunLog log(env, recipe, plan({}), ledger);
  log.begin();
  ledger.time_on(&device);
  log.begin_epoch({});
  const auto step = [&](int64_t number, int seconds) {
    {
      const Ledger::Scope forward(ledger, Phase::kForward);
      env.sleep_ns(seconds * kSecond);
    }
    const Ledger::Scope host(ledger, Phase::kHost);
    log.steps({number, 0, number, 25, 0}, hundred, 0.1);
  };
  step(1, 2);
  step(2, 5);
  log.epoch({2, 1, 0, 50, 0}, hundred, 0.1);
  log.begin_epoch({});
  step(3, 1);
  log.end({{3, 0, 3, 75, 0}, RunEnd::kDone, std::nullopt});
  std::istringstream lines(testing::read_text(dir / "metrics.jsonl"));
  std::vector<double> found;
  for (std::string line; std::getline(lines, line);)
    found.push_back(from_json_line(line).value().device_phases.value()[Phase::kForward]);
  EXPECT_EQ(found, (std::vector<double>{2, 5, 7, 1, 8}));
}

// The device's time of an evaluation ends at the start of the next epoch.
TEST_F(RunLogTest, AnEpochsDevicePhasesExcludeTheEvaluationBeforeIt) {
  const bool done = true;
  DevicePhases device([&] { return std::make_unique<ClockedMark>(env, done); });
  RunLog log(env, recipe, plan({}), ledger);
  log.begin();
  ledger.time_on(&device);
  const auto spend = [&](Phase phase, int seconds) {
    const Ledger::Scope scope(ledger, phase);
    env.sleep_ns(seconds * kSecond);
  };
  spend(Phase::kEvaluation, 5);
  log.begin_epoch({});
  spend(Phase::kForward, 2);
  spend(Phase::kHost, 1);
  log.steps({1, 0, 1, 25, 0}, hundred, 0.1);
  log.epoch({1, 1, 0, 25, 0}, hundred, 0.1);
  std::istringstream lines(testing::read_text(dir / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const PhaseTimes found = from_json_line(line).value().device_phases.value();
    EXPECT_EQ(found[Phase::kEvaluation], 0) << line;
    EXPECT_EQ(found[Phase::kForward], 2) << line;
  }
}

TEST_F(RunLogTest, TelemetryOfOneOfSeveralProcessesCountsItsOwnImages) {
  TelemetryLog::Sources sources;
  sources.processes = 2;
  const auto telemetry = std::make_shared<TelemetryLog>(Env::posix(), std::move(sources));
  telemetry->set_flop_per_sample(1e12);
  RunLog::Plan of_two = plan({});
  of_two.observers.push_back({telemetry});
  RunLog log(env, recipe, of_two, ledger);
  log.begin();
  log.begin_epoch({});
  env.sleep_ns(kSecond);
  log.steps(end, hundred, 0.1);
  EXPECT_DOUBLE_EQ(record().images_per_s.value(), 100);
  EXPECT_DOUBLE_EQ(record().telemetry.value().tflop_per_s.value(), 50);
}

}  // namespace
}  // namespace saturate
