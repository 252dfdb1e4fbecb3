// Faults planted in small runs, each found as first cause. Their outcome is a matter of measured
// time, so they run only where SATURATE_FAULTS is set (`make faults`).
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>

#include "advise/measured_recipe.h"
#include "advise/trial.h"
#include "saturate/diagnose.h"
#include "saturate/fault_env.h"
#include "saturate/thread_pool.h"
#include "tests/data_testing.h"
#include "tests/time_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

constexpr int64_t kMillisecond = 1'000'000;

class Diagnosing : public ::testing::Test {
 protected:
  Recipe recipe_with(const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"augment.size=16",  "model.name=mlp",     "train.batch=8",
                                    "train.threads=1",  "train.device=cpu",   "data.threads=2",
                                    "augment.crop=pad", "checkpoint.every=0", "data.prefetch=2"};
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe("", "test", all);
  }

  std::string photographs(int count, int width, int height) {
    for (int i = 0; i < count; ++i)
      testing::write_file(
          dir / ("data/" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg"),
          testing::noise_jpeg(width, height, uint64_t(i)));
    return "data.source=folder:" + (dir / "data");
  }

  DiagnoseOptions options(double seconds) {
    DiagnoseOptions made;
    made.folder = dir / "runs";
    made.seconds = seconds;
    made.rounds = 4;
    made.progress = Progress::Style::kSilent;
    made.wanted = wanted;
    return made;
  }

  Diagnosis diagnose(const std::vector<std::string>& settings, double seconds = 4) {
    found = measure(env, recipe_with(settings), options(seconds));
    EXPECT_TRUE(found.has_value());
    if (!found) return {};
    const Diagnosis diagnosis = classify(*found);
    for (const auto* list : {&diagnosis.fixes, &diagnosis.idle})
      for (const WhatIf& what_if : *list)
        report += what_if.text() + " " + std::to_string(what_if.gain->ratio) + " [" +
                  std::to_string(what_if.gain->low) + ", " + std::to_string(what_if.gain->high) +
                  "]\n";
    for (const WhatIf& what_if : diagnosis.skipped)
      report += what_if.text() + ": " + what_if.skipped + "\n";
    report += diagnosis.summary;
    return diagnosis;
  }

  TempDir dir;
  FaultEnv env{Env::posix()};
  std::function<bool(const WhatIf&)> wanted = [](const WhatIf&) { return true; };
  std::optional<Measurements> found;
  std::string report;
};

class PlantedFault : public Diagnosing {
 protected:
  void SetUp() override { SATURATE_NEEDS_TIME(); }
};

TEST_F(PlantedFault, ASlowDisk) {
  const std::string source = photographs(64, 16, 16);
  env.delay({FileOp::kRead, "data/"}, 5 * kMillisecond, 5 * kMillisecond);
  const Diagnosis diagnosis = diagnose({source});
  EXPECT_EQ(diagnosis.cause, Cause::kStorage) << report;
  ASSERT_FALSE(diagnosis.fixes.empty()) << report;
  EXPECT_GT(diagnosis.fixes[0].gain->ratio, 3) << report;
  EXPECT_GT(found->compute_rate, 3 * found->rate);
  EXPECT_LT(found->input_rate, 1.5 * found->rate);
  EXPECT_NEAR(found->input_rate, 400, 60) << "two threads, 5 ms each";
  EXPECT_GT(found->phases[Phase::kWait], 0.5 * found->phases.total());
}

// They wait for storage, which does not fit into memory: more of them wait at once.
TEST_F(PlantedFault, OneLoaderThread) {
  const std::string source = photographs(64, 16, 16);
  env.delay({FileOp::kRead, "data/"}, 5 * kMillisecond, 5 * kMillisecond);
  const Diagnosis diagnosis = diagnose({source, "data.threads=1", "data.cache_gb=0.000001"});
  EXPECT_EQ(diagnosis.cause, Cause::kInputThreads) << report;
  ASSERT_FALSE(diagnosis.fixes.empty()) << report;
  const int threads = std::max(available_cores(), 2);
  EXPECT_EQ(diagnosis.fixes[0].text(), "data.threads=" + std::to_string(threads));
  EXPECT_GT(diagnosis.fixes[0].gain->high, 0.8 * threads) << report;
  EXPECT_LT(diagnosis.fixes[0].gain->low, 1.2 * threads) << report;
}

TEST_F(PlantedFault, HugePhotographs) {
  const Diagnosis diagnosis = diagnose({photographs(16, 1200, 900), "augment.crop=random_resized"});
  EXPECT_EQ(diagnosis.cause, Cause::kDecode) << report;
}

TEST_F(PlantedFault, TooMuchAugmentation) {
  wanted = [](const WhatIf& what_if) {
    return what_if.cause == Cause::kAugmentation || what_if.cause == Cause::kDecode;
  };
  const Diagnosis diagnosis = diagnose(
      {photographs(128, 20, 20), "train.batch=32", "augment.size=64", "augment.policy=rand",
       "augment.policy_ops=8", "augment.blur=1", "augment.rotate=30"},
      8);
  EXPECT_EQ(diagnosis.cause, Cause::kAugmentation) << report;
}

TEST_F(PlantedFault, ABatchOfTwo) {
  const Diagnosis diagnosis = diagnose({"data.source=synth:size=16,count=400", "model.name=resnet9",
                                        "model.width=0.1", "train.batch=2"});
  EXPECT_EQ(diagnosis.cause, Cause::kSmallBatch) << report;
}

TEST_F(PlantedFault, ACheckpointEveryStep) {
  env.delay({FileOp::kSync, "checkpoints"}, 20 * kMillisecond, 20 * kMillisecond);
  const Diagnosis diagnosis = diagnose({"data.source=synth:size=16,count=400",
                                        "checkpoint.every_steps=1", "checkpoint.background=false"});
  EXPECT_EQ(diagnosis.cause, Cause::kCheckpointIo) << report;
  EXPECT_LT(diagnosis.efficiency, 0.5) << "compute alone saves nothing";
}

// The what-if needs more memory than the run that rests leaves of the budget, but not more than the
// budget itself.
TEST_F(PlantedFault, CheckpointingThatTheMemoryDoesNotNeed) {
  diagnose({"data.source=synth:size=16,count=400", "model.name=resnet9", "model.width=0.2",
            "train.batch=16", "train.checkpoint_segments=3", "train.memory_gb=0.2"},
           8);
  ASSERT_TRUE(found.has_value());
  const auto what_if = std::find_if(
      found->what_ifs.begin(), found->what_ifs.end(),
      [](const WhatIf& other) { return other.text() == "train.checkpoint_segments=0"; });
  ASSERT_NE(what_if, found->what_ifs.end());
  ASSERT_TRUE(what_if->gain) << what_if->skipped;
  EXPECT_EQ(what_if->cause, Cause::kMemory);
}

TEST_F(Diagnosing, WhatDoesNotRunIsToldAndTheRestMeasured) {
  DiagnoseOptions asked = options(2);
  asked.tries = {"train.memory_gb=0.0001", "optimizer.nesterov=false"};
  found = measure(env, recipe_with({"data.source=synth:size=16,count=400"}), asked);
  ASSERT_TRUE(found.has_value());
  ASSERT_GE(found->what_ifs.size(), 2u);
  EXPECT_NE(found->what_ifs[0].skipped.find("does not run: "), std::string::npos);
  EXPECT_TRUE(found->what_ifs[1].gain) << found->what_ifs[1].skipped;
}

TEST_F(Diagnosing, StopsWhenAsked) {
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

// ---- A run that takes turns --------------------------------------------------------------------

TEST_F(Diagnosing, ARunAtRestUsesNoTime) {
  const Recipe recipe =
      measured_recipe(recipe_with({"data.source=synth:size=64,count=20000", "data.prefetch=1024"}));
  Trial::Setup setup;
  setup.folder = dir / "a";
  setup.should_stop = [] { return false; };
  Trial trial(env, recipe, setup);
  EXPECT_EQ(trial.recipe().model.classes, 10);
  for (const Turn turn : {Turn::kWhole, Turn::kHeld, Turn::kInput, Turn::kWhole}) {
    const auto timing = trial.measure(turn, 0.05);
    ASSERT_TRUE(timing.has_value());
    EXPECT_GE(timing->wall_s, 0.05);
    EXPECT_GE(timing->samples, timing->steps * 8);
    EXPECT_NEAR(timing->phases.total(), timing->wall_s, 1e-9);
    EXPECT_EQ(timing->phases[Phase::kForward] > 0, turn != Turn::kInput);
    EXPECT_EQ(timing->phases[Phase::kWait] > 0, turn != Turn::kHeld);
    const uint64_t accesses = env.count({});
    const std::clock_t begin = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 0.1);
    EXPECT_EQ(env.count({}), accesses);
  }
}

TEST_F(Diagnosing, TwoRunsTakeTurnsAndEachGoesOn) {
  const Recipe recipe = measured_recipe(recipe_with({"data.source=synth:size=16,count=100"}));
  const auto make = [&](const std::string& name) {
    Trial::Setup setup;
    setup.folder = dir / name;
    setup.should_stop = [] { return false; };
    return std::make_unique<Trial>(env, recipe, setup);
  };
  auto a = make("a"), b = make("b");
  for (int round = 0; round < 3; ++round)
    for (Trial* trial : {a.get(), b.get()}) EXPECT_TRUE(trial->measure(Turn::kWhole, 0.02));
  a.reset();
  EXPECT_TRUE(b->measure(Turn::kWhole, 0.02));
}

TEST_F(Diagnosing, AFailureInATurnIsTheTurns) {
  const std::string source = photographs(40, 16, 16);
  Trial::Setup setup;
  setup.folder = dir / "a";
  setup.should_stop = [] { return false; };
  Trial trial(env, measured_recipe(recipe_with({source})), setup);
  Fault fault;
  fault.match = {FileOp::kRead, "data/"};
  fault.error = EIO;
  env.inject(fault);
  EXPECT_EQ(error_of([&] { trial.measure(Turn::kWhole, 0.05); }).exit_code(), 3);
  EXPECT_TRUE(trial.has_failed());
}

}  // namespace
}  // namespace saturate
