// Tuning a slow recipe.
#include <gtest/gtest.h>

#include <sstream>

#include "advise/tune.h"
#include "record/metrics.h"
#include "saturate/trainer.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/time_testing.h"

namespace saturate {
namespace {

using testing::TempDir;

Recipe small_recipe(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"data.source=synth:size=16,count=400",
                                  "data.threads=2",
                                  "model.name=mlp",
                                  "train.batch=10",
                                  "train.threads=1",
                                  "train.device=cpu",
                                  "optimizer.lr=0.02",
                                  "checkpoint.every=0",
                                  "train.epochs=4"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_recipe("", "test", all);
}

bool never() {
  return false;
}

TuneOptions options_in(const TempDir& dir, double minutes, int rounds) {
  TuneOptions options;
  options.folder = dir / "runs";
  options.minutes = minutes;
  options.rounds = rounds;
  options.progress = Progress::Style::kSilent;
  return options;
}

TEST(EarlyLoss, IsTheLossOfTheRunItself) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  const Recipe recipe = small_recipe({"watch.every=1"});
  const auto loss = early_loss(env, recipe, dir / "a", 400, never);
  ASSERT_TRUE(loss);
  TrainerOptions options;
  options.out = dir / "b";
  options.progress = Progress::Style::kSilent;
  options.save = false;
  Trainer(env, recipe, options).run();
  std::istringstream lines(testing::read_text(dir / "b/metrics.jsonl"));
  double sum = 0;
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = from_json_line(line);
    if (record->kind != "step" || record->samples <= 300 || record->samples > 400) continue;
    sum += *record->loss;
    ++count;
  }
  EXPECT_EQ(count, 10);
  EXPECT_NEAR(*loss, sum / count, 1e-9);
  EXPECT_FALSE(early_loss(env, recipe, dir / "c", 400, [] { return true; }));
}

TEST(Tune, TheLearningRateFollowsTheBatchSize) {
  OptimizerOptions optimizer;
  optimizer.lr = 0.1;
  EXPECT_DOUBLE_EQ(scaled_rate(optimizer, 2), 0.2);
  optimizer.name = "adamw";
  EXPECT_DOUBLE_EQ(scaled_rate(optimizer, 4), 0.2);
}

// Saving takes 20 ms, which is most of the time.
TEST(Tune, KeepsChangesThatSpeedUp) {
  SATURATE_NEEDS_TIME();
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.delay({FileOp::kSync, "checkpoints"}, 20'000'000, 20'000'000);
  const TuneOptions options = options_in(dir, 0.25, 4);
  const Recipe recipe = small_recipe({"checkpoint.every=1 step", "debug.off=background"});
  const auto tuning = tune(env, recipe, options);
  ASSERT_TRUE(tuning);
  ASSERT_FALSE(tuning->steps.empty());
  EXPECT_EQ(tuning->steps[0].fix.cause, Cause::kCheckpointIo) << tuning->steps[0].fix.text();
  EXPECT_EQ(tuning->steps[0].rejected, "");
  EXPECT_FALSE(tuning->steps[0].loss) << "saving cannot change the loss";
  EXPECT_GT(tuning->gain.low, 1.5);
  EXPECT_GT(tuning->rate_after, 1.5 * tuning->rate_before);
  EXPECT_NE(to_toml(tuning->recipe), to_toml(recipe));
  EXPECT_DOUBLE_EQ(tuning->recipe.train.epochs, 4)
      << "the settings of the measurement are not written";
}

// Sixteen images in micro-batches of two, while all at once take about as long as two.
const std::vector<std::string> kInParts = {"model.name=resnet9", "model.width=0.1",
                                           "train.batch=16", "train.accumulate=8"};

std::string tried_in(const Tuning& tuning) {
  std::string text = "tried:\n";
  for (const TuneStep& step : tuning.steps) text += step.fix.text() + ": " + step.rejected + "\n";
  return text;
}

// Each step saves for 200 ms: the only diagnosis has time for the recipe itself, and no change.
TEST(Tune, TooLittleTimeIsUndecided) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.delay({FileOp::kSync, "checkpoints"}, 200'000'000, 200'000'000);
  const auto tuning = tune(
      env, small_recipe({"checkpoint.every=1 step", "debug.off=background", "train.epochs=0.5"}),
      options_in(dir, 0.1, 3));
  ASSERT_TRUE(tuning);
  EXPECT_TRUE(tuning->steps.empty()) << tried_in(*tuning);
  EXPECT_TRUE(tuning->undecided);
  EXPECT_EQ(tuning->unit, "images");
  EXPECT_EQ(tuning->samples, 200) << "of half an epoch";
}

// A change of the training is faster, but is rejected, whatever the loss.
TEST(Tune, RejectsChangesThatWorsenTheLoss) {
  SATURATE_NEEDS_TIME();
  const TempDir dir;
  FaultEnv env(Env::posix());
  TuneOptions options = options_in(dir, 0.5, 3);
  options.tolerance = -0.9;  // no loss is accepted
  const auto tuning = tune(env, small_recipe(kInParts), options);
  ASSERT_TRUE(tuning);
  int lossy = 0;
  for (const TuneStep& step : tuning->steps) {
    if (step.fix.alters == Alters::kNothing) continue;
    lossy += step.rejected.find("the loss is ") != std::string::npos;
    EXPECT_NE(step.rejected, "") << step.fix.text();
    if (step.settings[0] == "train.batch=32") {
      EXPECT_EQ(step.settings.back(), "optimizer.lr=0.04");
    }
  }
  EXPECT_GE(lossy, 1) << tried_in(*tuning);
  EXPECT_EQ(tuning->recipe.train.batch, 16);
  EXPECT_EQ(tuning->recipe.train.accumulate, 8);
}

// Comparing a loss takes more steps than the remaining time allows: 24 and some of 70 steps' time.
TEST(Tune, ALossIsNotComparedWithoutTimeForIt) {
  SATURATE_NEEDS_TIME();
  const TempDir dir;
  FaultEnv env(Env::posix());
  auto settings = kInParts;
  settings.insert(settings.end(), {"data.source=synth:size=32,count=400", "augment.size=32",
                                   "train.batch=64", "train.accumulate=32"});
  const Recipe recipe = small_recipe(settings);
  const auto timed = [&](const auto& run) {
    const int64_t begin = Env::posix().now_ns();
    run();
    return double(Env::posix().now_ns() - begin) * 1e-9;
  };
  const double steps_24_s = timed([&] { early_loss(env, recipe, dir / "steps", 24 * 64, never); });
  const TuneOptions options = options_in(dir, 70.0 / 24 * steps_24_s / 60, 3);
  std::optional<Tuning> tuning;
  EXPECT_LT(timed([&] { tuning = tune(env, recipe, options); }), 2 * 60 * options.minutes);
  ASSERT_TRUE(tuning);
  int untimed = 0;
  for (const TuneStep& step : tuning->steps)
    untimed += step.rejected.find("raise --minutes") != std::string::npos;
  EXPECT_GE(untimed, 1) << tried_in(*tuning);
  EXPECT_EQ(tuning->recipe.train.accumulate, 32);
}

}  // namespace
}  // namespace saturate
