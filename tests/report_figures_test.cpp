// The figures of a run: from its records to what a report shows.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.h"
#include "report/run_figures.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using testing::kTwoEpochs;
using testing::line_of;
using testing::step_line;

using RunFiguresTest = testing::RunFolder;

TEST_F(RunFiguresTest, TimeSpansAreContiguousAndIncludeEvaluation) {
  const auto spans = time_spans(read(kTwoEpochs));
  double now = 0, evaluation = 0, other = 0;
  for (const auto& span : spans) {
    EXPECT_EQ(span.begin_s, now);
    EXPECT_NEAR(span.phases.total(), span.end_s - span.begin_s, 1e-12);
    now = span.end_s;
    evaluation += span.phases[Phase::kEvaluation];
    other += span.phases[Phase::kOther];
  }
  EXPECT_EQ(now, 9);
  EXPECT_DOUBLE_EQ(evaluation, 2.5);
  EXPECT_DOUBLE_EQ(other, 1 + 1 + 0.5);  // set-up, before the second epoch, at the end
}

// Milliseconds, and minutes if each gap looks at all evaluations.
TEST(RunFigures, OfAnyNumberOfEvaluationsTakeLittleTime) {
  constexpr size_t kCount = 20'000;
  RunReading run;
  for (size_t i = 0; i < kCount; ++i) {
    MetricsRecord record;
    record.time_s = double(4 * i + 2);
    record.phases.emplace().seconds[size_t(Phase::kForward)] = 2;
    run.steps.push_back(record);
    record.time_s += 1;
    run.evaluations.push_back(record);
  }
  run.last = run.evaluations.back();
  const auto begin = std::chrono::steady_clock::now();
  const auto spans = time_spans(run);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  PhaseTimes sum;
  for (const auto& span : spans) sum.add(span.phases);
  EXPECT_EQ(sum[Phase::kEvaluation], double(kCount));
  EXPECT_EQ(sum[Phase::kOther], double(kCount - 1));
}

TEST_F(RunFiguresTest, EvenSpansHaveTheSameTime) {
  const auto spans = time_spans(read(kTwoEpochs));
  for (const int count : {1, 7, 90}) {
    const auto even = even_spans(spans, count);
    ASSERT_EQ(even.size(), size_t(count));
    PhaseTimes sum;
    for (const auto& span : even) {
      EXPECT_NEAR(span.phases.total(), 9.0 / count, 1e-9);
      for (size_t i = 0; i < sum.seconds.size(); ++i) sum.seconds[i] += span.phases.seconds[i];
    }
    EXPECT_NEAR(sum[Phase::kWait], 1.5, 1e-9);
    EXPECT_NEAR(sum[Phase::kForward], 2.5, 1e-9);
    EXPECT_NEAR(sum[Phase::kEvaluation], 2.5, 1e-9);
  }
}

TEST_F(RunFiguresTest, TheNetworksPartOfTheWaitIsSummedAndShown) {
  std::string lines;
  for (const int step : {10, 20}) {
    MetricsRecord record = from_json_line(step_line(step, step / 5.0, 0.5, 1.5)).value();
    record.phases->network_wait = 0.25;
    lines += to_json_line(record) + "\n";
  }
  const std::vector<RunReading> runs = {read(lines)};
  EXPECT_NEAR(figures_of(runs[0]).phases->network_wait, 0.5, 1e-12);
  EXPECT_EQ(report_data(runs, {})["runs"][0]["figures"]["network_wait_s"], 0.5);
  EXPECT_EQ(figures_of(read(kTwoEpochs)).phases->network_wait, 0) << "as of an older file";
}

TEST_F(RunFiguresTest, ClosingFiguresAreThoseOfTheLastRecords) {
  const RunFigures figures = figures_of(read(kTwoEpochs));
  EXPECT_TRUE(figures.held_out);
  EXPECT_EQ(figures.accuracy, 0.6);
  EXPECT_EQ(figures.best_accuracy, 0.7);
  EXPECT_EQ(figures.time_s, 9);
  EXPECT_EQ(figures.steps, 20);
  EXPECT_EQ(figures.images_per_s, 50);
  EXPECT_NEAR(figures.phases->total(), 9, 1e-9);
}

TEST_F(RunFiguresTest, AResumedRunsPhasesIncludeEarlierProcesses) {
  MetricsRecord end;
  end.kind = "end";
  end.step = 20;
  end.time_s = 9;
  end.phases.emplace().seconds[size_t(Phase::kForward)] = 4;
  const std::string steps = step_line(10, 3, 0.5, 1.5) + step_line(20, 8, 1, 1);
  EXPECT_NEAR((*figures_of(read(steps + to_json_line(end) + "\n")).phases)[Phase::kForward], 2.5,
              1e-9);
  end.phases->seconds[size_t(Phase::kForward)] = 9;
  EXPECT_NEAR((*figures_of(read(steps + to_json_line(end) + "\n")).phases)[Phase::kForward], 9,
              1e-9);
}

// As train.early_stop leaves it: the weights of the first evaluation are restored.
TEST_F(RunFiguresTest, FiguresAreOfTheWeightsThatTheRunEndedWith) {
  MetricsRecord record;
  record.step = 20;
  record.time_s = 9;
  record.loss = 0.5;
  record.values = {{"r2", 0.1}, {"plain_r2", 0.3}};
  record.kind = "eval";
  std::string lines = step_line(10, 3, 0.5, 1.5) + line_of("eval", 10, 5, 0.9) +
                      step_line(20, 8, 1, 1) + to_json_line(record) + "\n";
  EXPECT_EQ(figures_of(read(lines)).loss, 0.5) << "it has not ended";
  record.kind = "end";
  record.accuracy = 0.9;
  record.loss = 0.25;
  record.values = {{"r2", 0.2}};
  lines += to_json_line(record) + "\n";
  const RunFigures figures = figures_of(read(lines));
  EXPECT_EQ(figures.accuracy, 0.9);
  EXPECT_EQ(figures.loss, 0.25);
  ASSERT_EQ(figures.values.size(), 2u);
  EXPECT_EQ(figures.values[0].value, 0.2);
  EXPECT_EQ(figures.values[1].value, 0.3);
}

// With --resume OLD --out NEW: the first 100 s and 100 steps are in OLD.
TEST_F(RunFiguresTest, TheTimeOfAnEarlierFolderIsNotCounted) {
  const RunReading run =
      read(step_line(110, 103, 0.5, 1.5) + step_line(120, 106, 1, 1) + line_of("end", 120, 107, 1));
  const auto spans = time_spans(run);
  ASSERT_FALSE(spans.empty());
  EXPECT_DOUBLE_EQ(spans.front().begin_s, 101);
  const RunFigures figures = figures_of(run);
  EXPECT_DOUBLE_EQ(figures.phases->total(), 6);
  EXPECT_DOUBLE_EQ((*figures.phases)[Phase::kOther], 1 + 1);
  EXPECT_EQ(figures.time_s, 107);
}

// Records of steps that take 1 or 2 s, and an evaluation of 0.5 s after every hundredth record.
TEST_F(RunFiguresTest, ALongRunHasTheSameFiguresFromFewerRecords) {
  std::string lines;
  for (int i = 1; i <= 1000; ++i) {
    const double seconds = i % 3 == 0 ? 1 : 2;
    MetricsRecord record =
        from_json_line(step_line(10 * i, 3 * i, 0.25 * seconds, 0.75 * seconds, i % 2)).value();
    record.images_per_s = 300 / seconds;
    record.device_phases = record.phases;
    record.streams = {{"step", seconds, 0.5}};
    lines += to_json_line(record) + "\n";
    if (i % 100 == 0) lines += line_of("eval", 10 * i, 3 * i + 0.5, 0.5);
  }
  const RunReading run = read(lines), fewer = read_run(Env::posix(), dir / "run", lines.size() / 8);
  EXPECT_EQ(run.steps.size(), 1000u);
  ASSERT_EQ(fewer.steps.size(), 10u * 12) << "9 in one, not across an evaluation";
  EXPECT_EQ(fewer.evaluations.size(), 10u);
  EXPECT_EQ(fewer.steps[0].step, 90);
  EXPECT_NEAR(*fewer.steps[0].loss, 5.0 / 9, 1e-12);
  EXPECT_NEAR(*fewer.steps[1].loss, 4.0 / 9, 1e-12);
  const RunFigures expected = figures_of(run), found = figures_of(fewer);
  EXPECT_EQ(found.time_s, expected.time_s);
  EXPECT_NEAR(*found.images_per_s, *expected.images_per_s, 1e-9);
  EXPECT_NEAR((*found.phases)[Phase::kEvaluation], 5, 1e-6);
  for (int i = 0; i < kPhaseCount; ++i)
    EXPECT_NEAR((*found.phases)[Phase(i)], (*expected.phases)[Phase(i)], 1e-6) << i;
  for (int i = 0; i < kPhaseCount; ++i)
    EXPECT_NEAR((*found.device_phases)[Phase(i)], (*expected.device_phases)[Phase(i)], 1e-6) << i;
  ASSERT_EQ(found.streams.size(), 1u);
  EXPECT_NEAR(found.streams[0].busy_s, expected.streams[0].busy_s, 1e-6);
  EXPECT_NEAR(found.streams[0].idle_s, expected.streams[0].idle_s, 1e-6);
}

TEST_F(RunFiguresTest, TheLastStepOfALongRunIsNotMerged) {
  std::string lines;
  for (int i = 1; i <= 108; ++i) lines += step_line(10 * i, 2 * i, 0.5, 1.5, i);
  EXPECT_EQ(read(lines).steps.size(), 108u);
  const RunReading run = read_run(Env::posix(), dir / "run", lines.size() / 8);
  ASSERT_EQ(run.steps.size(), 13u) << "9 in one, and the last one alone";
  EXPECT_EQ(run.steps[11].step, 1070);
  EXPECT_EQ(figures_of(run).loss, 108.0);
}

TEST(Thinned, PointsAreMeansWeightedBySteps) {
  std::vector<MetricsRecord> records(4);
  const int steps[] = {10, 20, 30, 35};
  for (size_t i = 0; i < 4; ++i) {
    records[i].step = steps[i];
    records[i].loss = double(i);
    records[i].memory_peak_bytes = int64_t(100 - i);
  }
  records[0].loss.reset();
  const auto fewer = thinned(records, 2);
  ASSERT_EQ(fewer.size(), 2u);
  EXPECT_EQ(fewer[0].step, 20);
  EXPECT_EQ(fewer[0].loss, 1);  // one value, since the other is unknown
  EXPECT_EQ(fewer[0].memory_peak_bytes, 100);
  EXPECT_EQ(fewer[1].step, 35);
  EXPECT_DOUBLE_EQ(*fewer[1].loss, (2 * 10 + 3 * 5) / 15.0);
  EXPECT_EQ(thinned(records, 4).size(), 4u);
  records[2].values = {{"r2", 0.5}};  // the last one has none
  EXPECT_TRUE(thinned(records, 2)[0].values.empty());
  ASSERT_EQ(thinned(records, 2)[1].values.size(), 1u);
  EXPECT_EQ(thinned(records, 2)[1].values[0].value, 0.5);
}

}  // namespace
}  // namespace saturate
