// From measured rates to a cause, on invented numbers.
#include <gtest/gtest.h>

#include <array>

#include "advise/diagnose.h"
#include "tests/classify_testing.h"

namespace saturate {
namespace {

using testing::computing;
using testing::gain;
using testing::input_bound;
using testing::what_if;

Cause cause_of(const Measurements& found) {
  return classify(found).cause;
}

TEST(Classify, NamesEveryCauseAsScriptsKnowIt) {
  const std::vector<std::string> names = {
      "input-threads",   "decode",      "storage",    "augmentation", "copy",          "host-sync",
      "launch-overhead", "small-batch", "precision",  "layout",       "communication", "straggler",
      "checkpoint-io",   "memory",      "evaluation", "logging",      "compute-bound"};
  ASSERT_EQ(names.size(), size_t(kCauseCount));
  for (int i = 0; i < kCauseCount; ++i) EXPECT_EQ(cause_name(Cause(i)), names[size_t(i)]);
}

TEST(Classify, TheLargestGainNamesTheCause) {
  for (const Cause cause : {Cause::kDecode, Cause::kStorage, Cause::kAugmentation})
    EXPECT_EQ(cause_of(input_bound({what_if(cause, 3), what_if(Cause::kInputThreads, 1.06),
                                    what_if(Cause::kSmallBatch, 1.5)})),
              cause);
  for (const Cause cause : {Cause::kHostSync, Cause::kLaunchOverhead, Cause::kSmallBatch,
                            Cause::kPrecision, Cause::kLayout, Cause::kCheckpointIo, Cause::kMemory,
                            Cause::kLogging, Cause::kComputeBound})
    EXPECT_EQ(cause_of(computing({what_if(cause, 2), what_if(Cause::kPrecision, 1.3),
                                  what_if(Cause::kDecode, 1.06)})),
              cause)
        << cause_name(cause);
}

TEST(Classify, IdleCoresComeBeforeReducingWorkPerImage) {
  const std::vector<WhatIf> what_ifs = {what_if(Cause::kInputThreads, 1.8),
                                        what_if(Cause::kDecode, 4.5),
                                        what_if(Cause::kAugmentation, 2)};
  Measurements found = input_bound(what_ifs);
  EXPECT_EQ(cause_of(found), Cause::kInputThreads);
  found.cores_used = 3.9;
  EXPECT_EQ(cause_of(found), Cause::kDecode) << "no core is idle";
  found = input_bound(what_ifs);
  found.what_ifs[0].gain = gain(1.15);
  EXPECT_EQ(cause_of(found), Cause::kDecode) << "threads hardly help";
}

// A slow disk: more threads that wait for it at once help too, but less than not waiting.
TEST(Classify, SlowStorageIsNotMistakenForTooFewThreads) {
  EXPECT_EQ(cause_of(input_bound({what_if(Cause::kInputThreads, 2), what_if(Cause::kStorage, 4.8),
                                  what_if(Cause::kDecode, 4.9)})),
            Cause::kStorage);
  EXPECT_EQ(
      cause_of(input_bound({what_if(Cause::kInputThreads, 4.9), what_if(Cause::kStorage, 4.8)})),
      Cause::kStorage);
  EXPECT_EQ(cause_of(input_bound({what_if(Cause::kInputThreads, 2), what_if(Cause::kStorage, 30),
                                  what_if(Cause::kDecode, 64)})),
            Cause::kStorage)
      << "decoded images in memory are not read from storage either";
  EXPECT_EQ(cause_of(input_bound({what_if(Cause::kStorage, 1.3), what_if(Cause::kDecode, 5)})),
            Cause::kDecode);
  EXPECT_EQ(
      cause_of(input_bound({what_if(Cause::kInputThreads, 3), what_if(Cause::kStorage, 1.4)})),
      Cause::kInputThreads);
}

TEST(Classify, AGainMustBeLargeEnoughAndSignificant) {
  WhatIf uncertain = what_if(Cause::kPrecision, 1.5);
  uncertain.gain->low = 0.9;
  WhatIf trains = what_if(Cause::kSmallBatch, 1.08);
  trains.alters = Alters::kTraining;
  const Diagnosis diagnosis =
      classify(computing({uncertain, trains, what_if(Cause::kLayout, 1.04)}));
  EXPECT_EQ(diagnosis.cause, Cause::kComputeBound);
  EXPECT_EQ(diagnosis.fixes.size(), 0u);
  EXPECT_EQ(diagnosis.uncertain.size(), 1u);
  EXPECT_EQ(diagnosis.idle.size(), 2u);
  trains.gain = gain(1.12);
  EXPECT_EQ(cause_of(computing({trains})), Cause::kSmallBatch);
}

// Decoding is the bottleneck: steps without it are three times as fast. 100 s of steps.
Measurements evaluating(double seconds, double times) {
  Measurements found = input_bound({what_if(Cause::kDecode, 3, "data.decode=fast")});
  found.run_s = 100;
  found.evaluations = {seconds, times};
  found.recipe.train.eval_every = 0;
  found.recipe.train.eval_every_steps = 2;
  return found;
}

TEST(Classify, EvaluationThatTakesMostOfTheTimeIsTheCause) {
  const Diagnosis diagnosis = classify(evaluating(1, 900));
  EXPECT_EQ(diagnosis.cause, Cause::kEvaluation);
  EXPECT_NE(diagnosis.summary.find("Evaluation is the bottleneck: 90 % of the training"),
            std::string::npos)
      << diagnosis.summary;
  ASSERT_EQ(diagnosis.fixes.size(), 2u);
  const WhatIf& fix = diagnosis.fixes.front();
  EXPECT_EQ(fix.text(), "train.eval_every=\"360 steps\"")
      << "evaluating a 180th as often takes at most 5 %";
  EXPECT_FALSE(fix.measured);
  EXPECT_DOUBLE_EQ(fix.gain->ratio, 1000.0 / 105);
  EXPECT_DOUBLE_EQ(diagnosis.fixes.back().gain->ratio, 1000.0 / (900 + 100.0 / 3))
      << "the speedup of the steps counts by their share of the training";
}

TEST(Classify, RareEvaluationIsNotTheCause) {
  const Diagnosis diagnosis = classify(evaluating(1, 8));
  EXPECT_EQ(diagnosis.cause, Cause::kDecode);
  ASSERT_EQ(diagnosis.idle.size(), 1u);
  EXPECT_EQ(diagnosis.idle.front().cause, Cause::kEvaluation)
      << "7 % is too little to evaluate less often";
  const Measurements none = evaluating(0, 0);
  EXPECT_EQ(classify(none).fixes.front().gain->ratio, 3);
  EXPECT_EQ(classify(none).idle.size(), 0u);
}

TEST(Classify, ASingleEvaluationAtTheEndHasNoSetting) {
  const Diagnosis diagnosis = classify(evaluating(900, 1));
  EXPECT_EQ(diagnosis.cause, Cause::kEvaluation);
  EXPECT_EQ(diagnosis.fixes.front().text(), "");
  EXPECT_DOUBLE_EQ(diagnosis.fixes.front().gain->ratio, 10);
  EXPECT_NE(diagnosis.summary.find("without it the run would be"), std::string::npos)
      << diagnosis.summary;
}

TEST(Classify, SavesOutsideMeasurementsAreCounted) {
  Measurements found = computing({});
  found.run_s = 100;
  found.saves = {10, 20};
  found.recipe.checkpoint.every = 1;
  found.recipe.checkpoint.every_steps = 0;
  found.recipe.checkpoint.every_minutes = 0;
  found.recipe.checkpoint.background = false;
  const Diagnosis diagnosis = classify(found);
  EXPECT_EQ(diagnosis.cause, Cause::kCheckpointIo);
  EXPECT_NE(diagnosis.summary.find("Saving checkpoints is the bottleneck: 67 % of the training"),
            std::string::npos)
      << diagnosis.summary;
  ASSERT_EQ(diagnosis.fixes.size(), 2u);
  EXPECT_EQ(diagnosis.fixes[0].text(), "debug.off=[]");
  EXPECT_DOUBLE_EQ(diagnosis.fixes[0].gain->ratio, 3);
  EXPECT_EQ(diagnosis.fixes[1].text(), "checkpoint.every=200");
}

TEST(Classify, SaysThatNoChangeIsWorthMaking) {
  const Diagnosis diagnosis = classify(computing({what_if(Cause::kPrecision, 0.7)}));
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_DOUBLE_EQ(diagnosis.efficiency, 0.97);
  EXPECT_NE(
      diagnosis.summary.find("No change is worth making: this step runs at 97 % of the slower"),
      std::string::npos)
      << diagnosis.summary;
}

WhatIf coarse(double ratio, double low, double high) {
  WhatIf made = what_if(Cause::kPrecision, ratio);
  made.gain = Gain{ratio, low, high};
  return made;
}

TEST(Classify, AnUncertainGainIsNotCalledHealthy) {
  const Diagnosis diagnosis = classify(computing({coarse(1.36, 0.66, 2.83)}));
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_TRUE(diagnosis.undecided);
  EXPECT_TRUE(diagnosis.idle.empty());
  ASSERT_EQ(diagnosis.uncertain.size(), 1u);
  EXPECT_NE(diagnosis.summary.find("Too little was measured to tell (1 may gain 1.25 times"),
            std::string::npos)
      << diagnosis.summary;
  EXPECT_NE(diagnosis.summary.find("--seconds"), std::string::npos);
  EXPECT_TRUE(classify(computing({coarse(1, 0.8, 1.24)})).healthy);
  EXPECT_TRUE(classify(computing({coarse(0.98, 0.7, 1.3)})).undecided) << "a gain is not ruled out";
  EXPECT_TRUE(classify(computing({coarse(1.04, 1.01, 1.3)})).healthy)
      << "only a small gain is certain";
  const Diagnosis other = classify(computing({coarse(1.36, 0.66, 2.83), coarse(1.5, 1.4, 1.6)}));
  EXPECT_FALSE(other.undecided) << "another change is worth making";
  EXPECT_EQ(other.cause, Cause::kPrecision);
}

TEST(Classify, AChangeWithoutTimeIsNotCalledHealthy) {
  WhatIf untimed = what_if(Cause::kPrecision, 1);
  untimed.gain.reset();
  untimed.skipped = "no time was left";
  untimed.no_time = true;
  const Diagnosis diagnosis = classify(computing({what_if(Cause::kLayout, 1), untimed}));
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_TRUE(diagnosis.undecided);
  EXPECT_NE(diagnosis.summary.find("(1 of 2 changes had no time)"), std::string::npos)
      << diagnosis.summary;
  untimed.no_time = false;
  untimed.skipped = "needs a GPU";
  EXPECT_TRUE(classify(computing({untimed})).healthy) << "the change does not apply";
}

TEST(Classify, ARunThatFailsWithEachChangeIsNotCalledHealthy) {
  WhatIf failing = what_if(Cause::kPrecision, 1);
  failing.gain.reset();
  failing.skipped = "does not run: why";
  failing.failed = true;
  const Diagnosis diagnosis = classify(computing({failing, failing}));
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_TRUE(diagnosis.undecided);
  EXPECT_NE(diagnosis.summary.find("the run fails with each of 2"), std::string::npos)
      << diagnosis.summary;
  EXPECT_TRUE(classify(computing({failing, what_if(Cause::kLayout, 1)})).healthy);
}

// The loader takes time from cores that compute, but a faster loader would gain nothing.
TEST(Classify, InputFasterThanComputeIsNotTheCause) {
  Measurements found = computing({what_if(Cause::kDecode, 1.01)});
  found.without_input = gain(1.08);
  EXPECT_EQ(cause_of(found), Cause::kComputeBound);
}

TEST(Classify, SaysHowMuchOfTheWaitForInputIsTheNetworks) {
  Measurements found = input_bound({what_if(Cause::kInputThreads, 3)});
  EXPECT_EQ(classify(found).summary.find("network"), std::string::npos);
  found.phases.network_wait = 0.6;
  EXPECT_NE(classify(found).summary.find("80 % of their time, of which 75 % is the network's"),
            std::string::npos)
      << classify(found).summary;
}

TEST(Classify, WithoutAFixTheCauseIsTheNearestOne) {
  const Diagnosis diagnosis =
      classify(input_bound({what_if(Cause::kDecode, 1.01), what_if(Cause::kAugmentation, 1.03),
                            what_if(Cause::kPrecision, 1.04)}));
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_EQ(diagnosis.cause, Cause::kAugmentation);
  EXPECT_EQ(cause_of(input_bound({})), Cause::kDecode);
}

TEST(Classify, FixesAreRankedByTheirGain) {
  WhatIf failed = what_if(Cause::kDecode, 1);
  failed.gain.reset();
  failed.skipped = "does not run";
  const Diagnosis diagnosis = classify(input_bound(
      {what_if(Cause::kPrecision, 1.2, "x.a=1"), failed, what_if(Cause::kDecode, 3, "x.b=1"),
       what_if(Cause::kLayout, 1, "x.c=1"), what_if(Cause::kStorage, 1.6, "x.d=1")}));
  ASSERT_EQ(diagnosis.fixes.size(), 3u);
  EXPECT_EQ(diagnosis.fixes[0].text(), "x.b=1");
  EXPECT_EQ(diagnosis.fixes[1].text(), "x.d=1");
  EXPECT_EQ(diagnosis.fixes[2].text(), "x.a=1");
  ASSERT_EQ(diagnosis.idle.size(), 1u);
  ASSERT_EQ(diagnosis.skipped.size(), 1u);
  EXPECT_EQ(diagnosis.skipped[0].skipped, "does not run");
  EXPECT_NE(diagnosis.summary.find("x.b=1 makes it 3.00 times as fast [2.98, 3.02]"),
            std::string::npos)
      << diagnosis.summary;
}

TEST(Classify, WaitingForTheDeviceIsInferred) {
  Measurements found = computing({});
  found.phases.seconds[size_t(Phase::kCopy)] = 0.5;
  EXPECT_EQ(cause_of(found), Cause::kComputeBound) << "on a CPU nothing is copied";
  found.on_gpu = true;
  EXPECT_NE(cause_of(found), Cause::kCopy) << "holding one batch gains only 1.03";
  found.without_input = gain(1.5, 0.1);
  const Diagnosis diagnosis = classify(found);
  EXPECT_EQ(diagnosis.cause, Cause::kCopy);
  ASSERT_EQ(diagnosis.fixes.size(), 1u);
  EXPECT_DOUBLE_EQ(diagnosis.fixes[0].gain->ratio, 1.5) << "at most a share of a third";
  EXPECT_DOUBLE_EQ(diagnosis.fixes[0].gain->low, 1.4);
  EXPECT_FALSE(diagnosis.fixes[0].measured);
  EXPECT_TRUE(diagnosis.fixes[0].settings.empty());
}

// ---- Several processes -------------------------------------------------------------------------

// Seconds of a step: waiting for input, backward, and waiting for other ranks.
PhaseTimes phases_of(const std::array<double, 3>& step) {
  PhaseTimes phases;
  phases.seconds[size_t(Phase::kWait)] = step[0];
  phases.seconds[size_t(Phase::kBackward)] = step[1];
  phases.seconds[size_t(Phase::kReduce)] = step[2];
  return phases;
}

// Three equal rounds.
Measurements group_of(const std::vector<std::array<double, 3>>& ranks) {
  Measurements found;
  for (const auto& step : ranks) {
    found.ranks.push_back(phases_of(step));
    found.rank_rounds.emplace_back(3, found.ranks.back());
  }
  found.phases = found.ranks[0];
  return found;
}

TEST(Classify, TheSlowestRankIsTheStraggler) {
  const Diagnosis diagnosis = classify(group_of({{0, 4, 6}, {5, 4.5, 0.5}, {0.5, 4.5, 5}}));
  EXPECT_EQ(diagnosis.cause, Cause::kStraggler);
  ASSERT_FALSE(diagnosis.fixes.empty());
  EXPECT_NEAR(diagnosis.fixes[0].gain->ratio, 10 / 5.5, 1e-9) << "rank 2 works 5 of 10 seconds";
  EXPECT_FALSE(diagnosis.fixes[0].measured);
  EXPECT_NE(diagnosis.summary.find("rank 1 works 9500.0 ms a step, 4500.0 ms more than the next, "
                                   "most of it in wait"),
            std::string::npos)
      << diagnosis.summary;
  EXPECT_NEAR(diagnosis.efficiency, (0.4 + 0.95 + 0.5) / 3, 1e-12);
}

// Two ranks that alternate in working two seconds longer, one of them once more often: 0.4 s of 8
// by their means.
TEST(Classify, NoiseBetweenRanksIsNotAStraggler) {
  Measurements found;
  for (const int late : {0, 1}) {
    std::vector<PhaseTimes> rounds;
    PhaseTimes mean = phases_of({0, late == 0 ? 6.2 : 5.8, late == 0 ? 1.8 : 2.2});
    for (const int round : {0, 1, 2, 3, 4})
      rounds.push_back(round % 2 == late ? phases_of({0, 7, 1}) : phases_of({0, 5, 3}));
    found.ranks.push_back(mean);
    found.rank_rounds.push_back(rounds);
  }
  const Diagnosis diagnosis = classify(found);
  EXPECT_TRUE(diagnosis.fixes.empty());
  EXPECT_TRUE(diagnosis.undecided) << "with so much noise nothing is ruled out";
  EXPECT_FALSE(diagnosis.healthy);
}

TEST(Classify, CommunicationIsMeasuredByStepsWithoutIt) {
  Measurements found = group_of({{0, 4, 6}, {0, 5, 5}});
  EXPECT_EQ(cause_of(found), Cause::kStraggler) << "steps without all-reduces gained nothing";
  found.without_sums = gain(2, 0.1);
  const Diagnosis diagnosis = classify(found);
  EXPECT_EQ(diagnosis.cause, Cause::kCommunication);
  ASSERT_EQ(diagnosis.fixes.size(), 2u);
  EXPECT_DOUBLE_EQ(diagnosis.fixes[0].gain->ratio, 2);
  EXPECT_DOUBLE_EQ(diagnosis.fixes[0].gain->low, 1.9);
  EXPECT_TRUE(diagnosis.fixes[0].measured);
  EXPECT_EQ(diagnosis.fixes[1].cause, Cause::kStraggler);
}

TEST(Classify, RanksThatHardlyWaitAreHealthy) {
  const Diagnosis diagnosis = classify(group_of({{0, 9.8, 0.2}, {0, 9.7, 0.3}}));
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_NE(diagnosis.summary.find("wait for each other for 2 % of their time"), std::string::npos)
      << diagnosis.summary;
}

}  // namespace
}  // namespace saturate
