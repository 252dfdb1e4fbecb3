// Measuring a run in this process: failing changes, pausing, and interleaving.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <thread>

#include "advise/measured_trainer.h"
#include "tests/diagnosing.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::Diagnosing;
using testing::error_of;

TEST_F(Diagnosing, AChangeThatFailsIsReportedAndOthersAreMeasured) {
  DiagnoseOptions asked = options(20);
  asked.enough = 1e-9;
  asked.tries = {"train.memory_gb=0.0001", "optimizer.nesterov=false"};
  found = measure(env, recipe_with({"data.source=synth:size=16,count=400"}), asked);
  ASSERT_TRUE(found.has_value());
  ASSERT_GE(found->what_ifs.size(), 2u);
  EXPECT_NE(found->what_ifs[0].skipped.find("does not run: "), std::string::npos);
  EXPECT_TRUE(found->what_ifs[1].gain) << found->what_ifs[1].skipped;
}

// It needs evaluations, which a measured run has none of.
TEST_F(Diagnosing, APlateauScheduleIsMeasured) {
  DiagnoseOptions asked = options(20);
  asked.enough = 1e-9;
  asked.tries = {"data.prefetch=3"};
  found = measure(env,
                  recipe_with({"data.source=synth:size=16,count=400", "schedule.name=plateau",
                               "data.eval_source=synth:size=16,count=40", "schedule.metric=loss"}),
                  asked);
  ASSERT_TRUE(found.has_value());
  ASSERT_FALSE(found->what_ifs.empty());
  EXPECT_TRUE(found->what_ifs[0].gain) << found->what_ifs[0].skipped;
}

TEST_F(Diagnosing, AFewRoundsSufficeIfNoMoreTimeIsLeft) {
  DiagnoseOptions asked = options(20);
  asked.enough = 1e-9;                                   // below any run
  asked.tries = {"data.prefetch=3", "data.prefetch=4"};  // measured whatever its upper bound
  found = measure(env, recipe_with({"data.source=synth:size=16,count=400"}), asked);
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->what_ifs.size(), 1u);
  EXPECT_TRUE(found->what_ifs[0].gain) << found->what_ifs[0].skipped;
  EXPECT_TRUE(found->is_cut_short);
}

TEST_F(Diagnosing, ARunWithoutAnyMeasuredChangeIsNotHealthy) {
  DiagnoseOptions asked = options(0.01);
  asked.tries = {"data.prefetch=3"};  // measured whatever its upper bound
  found = measure(env, recipe_with({"data.source=synth:size=16,count=400"}), asked);
  ASSERT_TRUE(found.has_value());
  ASSERT_FALSE(found->what_ifs.empty());
  EXPECT_TRUE(found->what_ifs[0].no_time);
  const Diagnosis diagnosis = classify(*found);
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_TRUE(diagnosis.undecided);
  EXPECT_NE(diagnosis.summary.find("raise --seconds"), std::string::npos) << diagnosis.summary;
}

TEST_F(Diagnosing, StopsOnRequest) {
  for (const int polls : {0, 5, 200}) {
    std::atomic<int> left = polls;
    DiagnoseOptions asked = options(60);
    asked.folder = dir / std::to_string(polls);
    asked.should_stop = [&] { return --left < 0; };
    EXPECT_FALSE(measure(env, recipe_with({"data.source=synth:size=16,count=400"}), asked));
  }
}

TEST_F(Diagnosing, TheRecipesOwnFailureIsAnError) {
  const std::string source = photographs(40, 16, 16);
  testing::write_file(dir / "data/0/10.jpg", "no image");
  EXPECT_EQ(error_of([&] { diagnose({source}); }).exit_code(), 3);
  DiagnoseOptions asked = options(2);
  asked.tries = {"train.bach=3"};
  EXPECT_EQ(error_of([&] { measure(env, recipe_with({source}), asked); }).exit_code(), 2);
}

// Such a run is mostly evaluation, whatever its steps wait for.
TEST_F(Diagnosing, EvaluationIsTimedAndCounted) {
  DiagnoseOptions asked = options(1);
  const Recipe recipe = recipe_with({"data.source=synth:size=16,count=400", "train.epochs=4",
                                     "data.eval_source=synth:size=16,count=4000,split=test",
                                     "train.eval_every=2 steps", "watch.histograms=7"});
  found = measure(env, recipe, asked);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->evaluations.times, 100);
  EXPECT_GT(found->evaluations.seconds, 0);
  EXPECT_GT(found->evaluation_share(), 0.5);
  EXPECT_EQ(found->recipe.train.eval_every_steps, 2);
  EXPECT_EQ(found->recipe.watch.histograms, 7) << "recording is part of a step";
  const Diagnosis diagnosis = classify(*found);
  EXPECT_EQ(diagnosis.cause, Cause::kEvaluation) << diagnosis.summary;
}

TEST_F(Diagnosing, ASaveOutsideAllMeasurementsIsTimed) {
  DiagnoseOptions asked = options(1);
  asked.wanted = [](const WhatIf&) { return false; };
  env.delay({FileOp::kSync, "checkpoints"}, 50 * testing::kMillisecond, 50 * testing::kMillisecond);
  found = measure(
      env,
      recipe_with({"data.source=synth:size=16,count=400000", "train.epochs=3", "checkpoint.every=1",
                   "debug.off=background", "data.eval_source=synth:size=16,count=100,split=test"}),
      asked);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->saves.times, 3);
  EXPECT_GE(found->saves.seconds, 0.05);
  EXPECT_EQ(found->evaluations.times, 0) << "evaluation is off";
}

TEST_F(Diagnosing, MeasurementsShareTheIndexOfTheSource) {
  const std::string source = photographs(24, 260, 200);
  DiagnoseOptions asked = options(3);
  asked.tries = {"data.cache=ram"};
  asked.wanted = [](const WhatIf& what_if) { return what_if.text() == "data.cache=ram"; };
  for (const std::string& index : {dir / "x.points", std::string("off")}) {
    asked.folder = dir / ("runs of " + index.substr(index.rfind('/') + 1));
    found = measure(env,
                    recipe_with({source, "augment.crop=random_resized", "data.decode=fast",
                                 "data.index=" + index}),
                    asked);
    ASSERT_TRUE(found.has_value());
    ASSERT_FALSE(found->what_ifs.empty());
    EXPECT_TRUE(found->what_ifs[0].gain) << found->what_ifs[0].skipped;
  }
  EXPECT_TRUE(std::filesystem::exists(dir / "x.points"));
}

// ---- Several processes -------------------------------------------------------------------------

TEST_F(Diagnosing, ProcessesAlternateStepsWithAndWithoutAllReduce) {
  std::vector<std::optional<Measurements>> all(2);
  testing::run_ranks(2, [&](Group& own) {
    const std::shared_ptr<Group> group(&own, [](Group*) {});
    all[size_t(group->rank())] = measure(
        Env::posix(), recipe_with({"data.source=synth:size=16,count=400"}), group, options(0.2));
  });
  for (const auto& measured : all) {
    ASSERT_TRUE(measured.has_value());
    ASSERT_EQ(measured->ranks.size(), 2u);
    ASSERT_EQ(measured->rank_rounds.size(), 2u);
    const size_t rounds = measured->rank_rounds[0].size();
    EXPECT_GE(rounds, 3u);
    EXPECT_LE(rounds, 4u);
    EXPECT_EQ(measured->rank_rounds[1].size(), rounds);
    for (const PhaseTimes& rank : measured->ranks) {
      EXPECT_GT(rank[Phase::kForward], 0);
      EXPECT_GT(rank[Phase::kReduce], 0);
    }
    const Gain& gain = measured->without_sums;
    EXPECT_GT(gain.low, 0);
    EXPECT_LT(gain.low, gain.ratio);
    EXPECT_GT(gain.high, gain.ratio);
    const Diagnosis diagnosis = classify(*measured);
    EXPECT_EQ(diagnosis.fixes.size() + diagnosis.uncertain.size() + diagnosis.idle.size(), 2u);
  }
  EXPECT_EQ(all[0]->ranks[1].total(), all[1]->ranks[1].total())
      << "all ranks have the same results";
}

TEST_F(Diagnosing, ProcessesTimeTheirEvaluationAndSavesTogether) {
  std::vector<std::optional<Measurements>> all(2);
  env.delay({FileOp::kSync, "checkpoints"}, 50 * testing::kMillisecond, 50 * testing::kMillisecond);
  const Recipe recipe =
      recipe_with({"data.source=synth:size=16,count=400000", "train.epochs=4", "checkpoint.every=1",
                   "debug.off=background", "data.eval_source=synth:size=16,count=4000,split=test",
                   "train.eval_every=20 steps"});
  testing::run_ranks(2, [&](Group& own) {
    const std::shared_ptr<Group> group(&own, [](Group*) {});
    all[size_t(group->rank())] = measure(env, recipe, group, options(0.5));
  });
  for (const auto& measured : all) {
    ASSERT_TRUE(measured.has_value());
    EXPECT_EQ(measured->evaluations.times, 4 * 400000 / 8 / 20);
    EXPECT_GT(measured->evaluations.seconds, 0);
    EXPECT_EQ(measured->saves.times, 4);
    EXPECT_GE(measured->saves.seconds, 0.05);
    EXPECT_EQ(measured->recipe.train.eval_every_steps, 20);
    const Diagnosis diagnosis = classify(*measured);
    EXPECT_EQ(diagnosis.cause, Cause::kEvaluation) << diagnosis.summary;
    EXPECT_NE(diagnosis.summary.find("train.eval_every"), std::string::npos) << diagnosis.summary;
  }
  EXPECT_EQ(all[0]->evaluations.seconds, all[1]->evaluations.seconds) << "all know the same";
  EXPECT_EQ(all[0]->saves.seconds, all[1]->saves.seconds);
}

TEST_F(Diagnosing, ProcessesStopIfOneIsStopped) {
  for (const int polls : {3, 14, 15, 16, 40}) {
    testing::run_ranks(2, [&](Group& own) {
      const std::shared_ptr<Group> group(&own, [](Group*) {});
      DiagnoseOptions asked = options(600);
      asked.folder = dir / std::to_string(polls);
      int left = group->rank() == 0 ? polls : 1'000'000;
      asked.should_stop = [&] { return --left < 0; };
      EXPECT_FALSE(
          measure(Env::posix(), recipe_with({"data.source=synth:size=16,count=400"}), group, asked))
          << polls;
    });
  }
}

// ---- Interleaved runs --------------------------------------------------------------------------

// Tells of reads of a source.
class WatchedDataset : public Dataset {
 public:
  WatchedDataset(std::unique_ptr<Dataset> source, std::function<void(size_t index)> on_read)
      : source_(std::move(source)), on_read_(std::move(on_read)) {}
  size_t size() const override { return source_->size(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  void read(size_t index, Sample& out) const override {
    on_read_(index);
    source_->read(index, out);
  }

 private:
  const std::unique_ptr<Dataset> source_;
  const std::function<void(size_t index)> on_read_;
};

// Whether no thread of this process except the caller's runs or is ready to run.
bool all_others_are_blocked() {
  const std::string own = std::to_string(gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string stat = testing::read_text(task.path() / "stat");
    const size_t name_end = stat.rfind(") ");
    if (task.path().filename() != own && name_end != std::string::npos && stat[name_end + 2] == 'R')
      return false;
  }
  return true;
}

// Idle threads block eventually, however slow the machine is.
bool all_others_block_eventually() {
  for (int i = 0; i < 60'000; ++i) {
    if (all_others_are_blocked()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST_F(Diagnosing, APausedRunUsesNoTime) {
  const Recipe recipe =
      measured_recipe(recipe_with({"data.source=synth:size=64,count=20000", "data.prefetch=1024"}));
  std::atomic<uint64_t> reads = 0;
  TrainerOptions options = measured_options(dir / "a", [] { return false; });
  options.dataset = std::make_shared<WatchedDataset>(open_dataset(env, recipe.data.source),
                                                     [&](size_t) { ++reads; });
  Trial trial(env, recipe, options);
  EXPECT_EQ(trial.recipe().model.classes, 10);
  for (const Turn turn : {Turn::kWhole, Turn::kHeld, Turn::kInput, Turn::kWhole}) {
    const auto timing = trial.measure(turn, 0.05);
    ASSERT_TRUE(timing.has_value());
    EXPECT_GE(timing->wall_s, 0.05);
    EXPECT_GE(timing->samples, timing->steps * 8);
    EXPECT_NEAR(timing->phases.total(), timing->wall_s, 1e-9);
    EXPECT_EQ(timing->phases[Phase::kForward] > 0, turn != Turn::kInput);
    EXPECT_EQ(timing->phases[Phase::kWait] > 0, turn != Turn::kHeld);
    const uint64_t accesses = env.count({}), samples = reads;
    EXPECT_GT(samples, 0u);
    EXPECT_TRUE(all_others_block_eventually());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a run that does not pause
    EXPECT_EQ(env.count({}), accesses);
    EXPECT_EQ(reads, samples);
  }
}

// On slow storage samples that were just read would come from the system's memory.
TEST_F(Diagnosing, EachTurnReadsTheNextSamples) {
  constexpr size_t kBatch = 8, kBatches = 50'000;
  const Recipe recipe = measured_recipe(
      recipe_with({"data.source=synth:size=16,count=" + std::to_string(kBatch * kBatches),
                   "data.shuffle=none"}));
  std::atomic<size_t> lowest = 0;
  TrainerOptions options = measured_options(dir / "a", [] { return false; });
  options.dataset =
      std::make_shared<WatchedDataset>(open_dataset(env, recipe.data.source), [&](size_t index) {
        for (size_t before = lowest; index < before;)
          if (lowest.compare_exchange_weak(before, index)) break;
      });
  Trial trial(env, recipe, options);
  EXPECT_EQ(trial.place(), 0);
  trial.go_to(0.25);
  size_t next = kBatch * kBatches / 4;
  for (const Turn turn : {Turn::kWhole, Turn::kInput, Turn::kWhole, Turn::kInput, Turn::kWhole}) {
    lowest = SIZE_MAX;
    const auto timing = trial.measure(turn, 0.02);
    ASSERT_TRUE(timing.has_value());
    EXPECT_EQ(lowest, next);
    const size_t end = size_t(std::llround(trial.place() * kBatches)) * kBatch;
    EXPECT_GE(end, next + size_t(timing->samples));
    next = end;
  }
}

TEST_F(Diagnosing, AnEvaluationCutShortIsExtrapolated) {
  Recipe recipe =
      measured_recipe(recipe_with({"data.source=synth:size=16,count=100", "train.eval_batch=10"}));
  recipe.data.eval_source = "synth:size=16,count=20000,split=test";
  recipe.train.eval_every = 0;
  Trial trial(env, recipe, measured_options(dir / "a", [] { return false; }));
  const auto part = trial.measure(Turn::kEvaluate, 1e-9),
             whole = trial.measure(Turn::kEvaluate, 1e9);
  ASSERT_TRUE(part && whole);
  EXPECT_GT(whole->wall_s, 0);
  EXPECT_GT(part->wall_s, whole->wall_s / 50) << "one of 2,000 batches was evaluated";
  EXPECT_TRUE(trial.measure(Turn::kWhole, 0.02)) << "the run continues";
}

TEST_F(Diagnosing, TwoRunsAlternateAndEachContinues) {
  const Recipe recipe = measured_recipe(recipe_with({"data.source=synth:size=16,count=100"}));
  const auto make = [&](const std::string& name) {
    return std::make_unique<Trial>(env, recipe, measured_options(dir / name, [] { return false; }));
  };
  auto a = make("a"), b = make("b");
  for (int round = 0; round < 3; ++round)
    for (Trial* trial : {a.get(), b.get()}) EXPECT_TRUE(trial->measure(Turn::kWhole, 0.02));
  a.reset();
  EXPECT_TRUE(b->measure(Turn::kWhole, 0.02));
}

TEST_F(Diagnosing, AFailureWhileMeasuringIsThrownThere) {
  const std::string source = photographs(40, 16, 16);
  Trial trial(env, measured_recipe(recipe_with({source})),
              measured_options(dir / "a", [] { return false; }));
  Fault fault;
  fault.match = {FileOp::kRead, "data/"};
  fault.error = EIO;
  env.inject(fault);
  EXPECT_EQ(error_of([&] { trial.measure(Turn::kWhole, 0.05); }).exit_code(), 3);
  EXPECT_TRUE(trial.has_failed());
}

}  // namespace
}  // namespace saturate
