// Faults planted in small runs: each must be found as the first cause, with a correct predicted
// speedup. The outcome depends on measured time, so these tests run only if SATURATE_FAULTS is set
// (`make faults`).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/thread_pool.h"
#include "saturate/trainer.h"
#include "tests/diagnosing.h"
#include "tests/reduce_testing.h"
#include "tests/time_testing.h"
#include "trace/host.h"

namespace saturate {
namespace {

using testing::Diagnosing;
using testing::kMillisecond;

class PlantedFault : public Diagnosing {
 protected:
  void SetUp() override { SATURATE_NEEDS_TIME(); }

  // About a minute, the command's default.
  Diagnosis diagnose(const std::vector<std::string>& settings, double seconds = 60) {
    return Diagnosing::diagnose(settings, seconds, DiagnoseOptions().rounds);
  }

  // Images per second of ordinary training after its first second, which contains the first epoch
  // of every source here.
  double trained_rate(const std::vector<std::string>& settings) {
    constexpr double kWarmUp = 1, kSeconds = 1.5;
    std::vector<std::string> all = settings;
    all.insert(all.end(), {"optimizer.lr=0", "train.epochs=1e6"});
    TrainerOptions options;
    options.out = dir / ("trained" + std::to_string(trained_++));
    options.progress = Progress::Style::kSilent;
    Trainer trainer(env, recipe_with(all), options);
    const auto now_s = [&] { return double(env.now_ns()) * 1e-9; };
    const auto train_for = [&](double seconds) {
      const double begin = now_s();
      while (now_s() < begin + seconds) EXPECT_TRUE(trainer.step());
      return now_s() - begin;
    };
    train_for(kWarmUp);
    const int64_t before = trainer.so_far().samples;
    const double seconds = train_for(kSeconds);
    return double(trainer.so_far().samples - before) / seconds;
  }

  // Trains with and without the fix for the cause, interleaved: the prediction is within 15 %.
  void expect_prediction_holds(const std::vector<std::string>& settings,
                               const Diagnosis& diagnosis) {
    const auto fix =
        std::find_if(diagnosis.fixes.begin(), diagnosis.fixes.end(),
                     [&](const WhatIf& other) { return other.cause == diagnosis.cause; });
    ASSERT_NE(fix, diagnosis.fixes.end()) << report;
    std::vector<std::string> fixed = settings;
    fixed.insert(fixed.end(), fix->settings.begin(), fix->settings.end());
    std::vector<double> before, after;
    for (int round = 0; round < 7; ++round) {
      before.push_back(trained_rate(settings));
      after.push_back(trained_rate(fixed));
    }
    const double measured = paired_gain(before, after).ratio;
    RecordProperty("predicted", std::to_string(fix->gain->ratio));
    RecordProperty("measured", std::to_string(measured));
    std::printf("%s: %s predicted %.2f times [%.2f, %.2f], measured %.2f\n",
                std::string(cause_name(diagnosis.cause)).c_str(), fix->text().c_str(),
                fix->gain->ratio, fix->gain->low, fix->gain->high, measured);
    EXPECT_NEAR(fix->gain->ratio / measured, 1, 0.15) << report;
  }

  // Cached images and large batches: otherwise loader threads, which take cores from the step, and
  // a step's fixed cost would weigh as much as the computation. A step that uses all cores waits
  // for the slowest of them, so its time varies most: measure for two minutes.
  std::vector<std::string> of_all_cores(std::vector<std::string> settings) {
    settings.insert(
        settings.end(),
        {"data.source=synth:size=32,count=2000", "data.cache=ram:decoded", "data.threads=1",
         "augment.size=32", "model.name=resnet9", "model.width=0.2", "train.batch=256",
         "train.threads=" + std::to_string(available_cores()), "precision.mode=auto"});
    return settings;
  }

 private:
  int trained_ = 0;
};

// Steps of some milliseconds: with much shorter ones a speedup of 50 varies from run to run.
TEST_F(PlantedFault, ASlowDisk) {
  env.delay({FileOp::kRead, "data/"}, 5 * kMillisecond, 5 * kMillisecond);
  const std::vector<std::string> settings = {photographs(64, 16, 16), "model.name=resnet9",
                                             "model.width=0.1"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kStorage) << report;
  EXPECT_GT(found->compute_rate, 3 * found->rate);
  EXPECT_LT(found->input_rate, 1.5 * found->rate);
  EXPECT_NEAR(found->input_rate, 400, 60) << "two threads, 5 ms each";
  EXPECT_GT(found->phases[Phase::kWait], 0.5 * found->phases.total());
  expect_prediction_holds(settings, diagnosis);
}

// Storage that does not fit into memory: more threads wait for it at once.
TEST_F(PlantedFault, OneLoaderThread) {
  env.delay({FileOp::kRead, "data/"}, 5 * kMillisecond, 5 * kMillisecond);
  const std::vector<std::string> settings = {photographs(64, 16, 16), "data.threads=1",
                                             "data.cache_gb=0.000001"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kInputThreads) << report;
  ASSERT_FALSE(diagnosis.fixes.empty()) << report;
  const int threads = std::max(available_cores(), 2);
  EXPECT_EQ(diagnosis.fixes[0].text(), "data.threads=" + std::to_string(threads));
  expect_prediction_holds(settings, diagnosis);
}

TEST_F(PlantedFault, HugePhotographs) {
  const std::vector<std::string> settings = {photographs(16, 1200, 900),
                                             "augment.crop=random_resized"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kDecode) << report;
  expect_prediction_holds(settings, diagnosis);
}

TEST_F(PlantedFault, TooMuchAugmentation) {
  wanted = [](const WhatIf& what_if) {
    return what_if.cause == Cause::kAugmentation || what_if.cause == Cause::kDecode;
  };
  const std::vector<std::string> settings = {photographs(128, 20, 20), "train.batch=32",
                                             "augment.size=64",        "augment.policy=rand:8",
                                             "augment.blur=1",         "augment.rotate=30"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kAugmentation) << report;
  expect_prediction_holds(settings, diagnosis);
}

TEST_F(PlantedFault, ABatchOfTwo) {
  const std::vector<std::string> settings = {"data.source=synth:size=16,count=400",
                                             "model.name=resnet9", "model.width=0.1",
                                             "train.batch=2"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kSmallBatch) << report;
  expect_prediction_holds(settings, diagnosis);
}

TEST_F(PlantedFault, ACheckpointEveryStep) {
  env.delay({FileOp::kSync, "checkpoints"}, 20 * kMillisecond, 20 * kMillisecond);
  const std::vector<std::string> settings = {"data.source=synth:size=16,count=400",
                                             "model.name=resnet9", "model.width=0.1",
                                             "checkpoint.every=1 step", "debug.off=background"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kCheckpointIo) << report;
  EXPECT_LT(diagnosis.efficiency, 0.5) << "compute alone does not save checkpoints";
  expect_prediction_holds(settings, diagnosis);
}

// On a CPU the only wait for the device is debugging that reads every gradient.
TEST_F(PlantedFault, AnomalyDetectionThatReadsEveryGradient) {
  const std::vector<std::string> settings = {"data.source=synth:size=16,count=400",
                                             "debug.checks=anomaly"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kHostSync) << report;
  expect_prediction_holds(settings, diagnosis);
}

TEST_F(PlantedFault, APrecisionThatIsSlowOnThisCpu) {
  const bool pays = cpu_has_bf16();  // for large convolutions
  const std::vector<std::string> settings = {"data.source=synth:size=32,count=400",
                                             "augment.size=32",
                                             "model.name=resnet9",
                                             pays ? "model.width=0.5" : "model.width=0.2",
                                             "train.batch=64",
                                             pays ? "precision.mode=fp32" : "precision.mode=bf16"};
  const Diagnosis diagnosis = diagnose(settings);
  EXPECT_EQ(diagnosis.cause, Cause::kPrecision) << report;
  expect_prediction_holds(settings, diagnosis);
}

// The what-if needs more memory than the paused run leaves of the budget, but not more than the
// whole budget.
TEST_F(PlantedFault, UnneededGradientCheckpointing) {
  const auto settings = of_all_cores({"train.checkpoint_segments=4", "train.memory_gb=0.3"});
  const Diagnosis diagnosis = diagnose(settings, 120);
  EXPECT_EQ(diagnosis.cause, Cause::kMemory) << report;
  expect_prediction_holds(settings, diagnosis);
}

// One of two processes reads from a slow disk; then the disk is made fast.
TEST_F(PlantedFault, AStraggler) {
  const std::vector<std::string> settings = {photographs(64, 16, 16), "model.name=resnet9",
                                             "model.width=0.2", "train.batch=32"};
  const auto diagnose_two = [&](FaultEnv& second, const std::string& name) {
    std::optional<Measurements> of_first;
    testing::run_ranks(2, [&](Group& own) {
      const std::shared_ptr<Group> group(&own, [](Group*) {});
      DiagnoseOptions asked = options(20, 12);
      asked.folder = dir / name;
      auto measured =
          measure(group->rank() == 1 ? second : env, recipe_with(settings), group, asked);
      if (group->rank() == 0) of_first = std::move(measured);
    });
    return *of_first;
  };
  FaultEnv slow(Env::posix());
  slow.delay({FileOp::kRead, "data/"}, 5 * kMillisecond, 5 * kMillisecond);
  const Measurements slowed = diagnose_two(slow, "slow");
  const Diagnosis diagnosis = classify(slowed);
  EXPECT_EQ(diagnosis.cause, Cause::kStraggler) << diagnosis.summary;
  EXPECT_NE(diagnosis.summary.find("rank 1 "), std::string::npos) << diagnosis.summary;
  EXPECT_NE(diagnosis.summary.find("most of it in wait"), std::string::npos) << diagnosis.summary;
  ASSERT_FALSE(diagnosis.fixes.empty());
  const double measured = diagnose_two(env, "repaired").rate / slowed.rate;
  std::printf("straggler: predicted %.2f times, measured %.2f\n",
              diagnosis.fixes.front().gain->ratio, measured);
  EXPECT_NEAR(diagnosis.fixes.front().gain->ratio / measured, 1, 0.15);
}

TEST_F(PlantedFault, AHealthyRun) {
  EXPECT_TRUE(diagnose(of_all_cores({}), 120).healthy) << report;
}

}  // namespace
}  // namespace saturate
