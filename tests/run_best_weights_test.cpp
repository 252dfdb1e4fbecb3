// The best weights of a run, and runs that have ended: what they restore, and what a resume does.
#include <gtest/gtest.h>

#include <filesystem>

#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/fault_env.h"
#include "tests/saving_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::file_of;
using testing::folder_contents;
using testing::often_watched_recipe;
using testing::recorded_steps;
using testing::resuming_options;
using testing::run_once;
using testing::same_weights;
using testing::saved_steps;
using testing::saving_options;
using testing::TempDir;
using testing::worsening_recipe;

TEST(RestoreBest, ABrokenOrWrongFileKeepsTheLastWeights) {
  const TempDir dir;
  for (const bool broken : {true, false}) {
    const std::string run = dir / (broken ? "broken" : "other");
    TrainerOptions options = saving_options(run);
    int asked = 0;  // first before step 1
    options.should_stop = [&] {
      if (++asked != 10) return false;  // after step 5, with two in each evaluation
      if (broken)
        testing::write_file(file_of(run, 2), "not one");
      else
        std::filesystem::copy_file(file_of(run, 4), file_of(run, 2),
                                   std::filesystem::copy_options::overwrite_existing);
      return false;
    };
    const TrainResult result = run_once(worsening_recipe(2), options);
    EXPECT_EQ(result.end, RunEnd::kEarlyStop);
    EXPECT_EQ(result.best.best_step, 2);
    const Checkpoint last = read_checkpoint(Env::posix(), file_of(run, 6));
    ASSERT_TRUE(last.evaluation);
    EXPECT_EQ(last.evaluation->step, 6);
    EXPECT_FALSE(same_weights(file_of(run, 6), file_of(run, broken ? 4 : 2)));
  }
}

TEST(RestoreBest, ABestWhoseSaveFailedIsSavedWithTheNext) {
  const TempDir dir;
  for (const bool background : {false, true}) {
    const std::string run = dir / (background ? "background" : "foreground");
    Recipe recipe = worsening_recipe(2);
    recipe.checkpoint.background = background;
    FaultEnv env(Env::posix());
    Fault fault;
    fault.match = {FileOp::kWrite, "step-00000002"};
    fault.times = 1;
    env.inject(fault);
    EXPECT_EQ(run_once(recipe, saving_options(run), env).end, RunEnd::kEarlyStop);
    EXPECT_TRUE(same_weights(file_of(run, 6), file_of(run, 2)));
    EXPECT_FALSE(same_weights(file_of(run, 4), file_of(run, 2)));
  }
}

TEST(RestoreBest, TheirFileIsKeptAlsoWithoutKeepBest) {
  const TempDir dir;
  Recipe recipe = worsening_recipe(2);
  recipe.checkpoint.every_steps = 0;
  recipe.checkpoint.keep = 1;
  recipe.checkpoint.keep_best = false;
  const std::string run = dir / "run";
  EXPECT_EQ(run_once(recipe, saving_options(run)).end, RunEnd::kEarlyStop);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{6, 2}));
  EXPECT_TRUE(same_weights(file_of(run, 6), file_of(run, 2)));
}

// A run of four steps that ended with its last weights, though those of step 2 are its best.
void make_old_run(const std::string& run) {
  Recipe recipe = worsening_recipe(0);
  recipe.train.epochs = 1;
  ASSERT_EQ(run_once(recipe, saving_options(run)).best.best_step, 2);
}

TEST(RestoreBest, TheyMayBeInTheFolderThatARunResumedFrom) {
  const TempDir dir;
  const std::string old = dir / "old", run = dir / "new";
  make_old_run(old);
  const TrainResult result = run_once(worsening_recipe(2), resuming_options(run, old));
  EXPECT_EQ(result.end, RunEnd::kEarlyStop);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(result.best.best_step, 2);
  EXPECT_TRUE(same_weights(file_of(run, 6), file_of(old, 2)));
}

TEST(RestoreBest, ARunThatResumesElsewhereTakesThemAlong) {
  const TempDir dir;
  const std::string old = dir / "old", run = dir / "new";
  make_old_run(old);
  TrainerOptions options = resuming_options(run, old);
  int asked = 0;
  options.should_stop = [&] { return ++asked == 2; };  // after step 5
  EXPECT_EQ(run_once(worsening_recipe(2), options).end, RunEnd::kInterrupted);
  EXPECT_EQ(best_checkpoint_path(Env::posix(), run), file_of(run, 2));
  EXPECT_TRUE(same_weights(file_of(run, 2), file_of(old, 2)));
  std::filesystem::remove_all(old);
  const TrainResult result = run_once(worsening_recipe(2), resuming_options(run, run));
  EXPECT_EQ(result.end, RunEnd::kEarlyStop);
  EXPECT_EQ(result.best.best_step, 2);
  EXPECT_TRUE(same_weights(file_of(run, 6), file_of(run, 2)));
}

// `eval --best` finds them there.
TEST(RestoreBest, ARunWithoutEarlyStoppingTakesThemAlongToo) {
  const TempDir dir;
  const std::string old = dir / "old", run = dir / "new";
  make_old_run(old);
  const TrainResult result = run_once(worsening_recipe(0), resuming_options(run, old));
  EXPECT_EQ(result.end, RunEnd::kDone);
  EXPECT_EQ(result.best.best_step, 2);
  EXPECT_EQ(best_checkpoint_path(Env::posix(), run), file_of(run, 2));
  EXPECT_TRUE(same_weights(file_of(run, 2), file_of(old, 2)));
}

// Otherwise it would end with its last weights, or never find better ones.
TEST(RestoreBest, ALostCheckpointOfTheBestResetsTheBestValue) {
  const TempDir dir;
  for (const bool elsewhere : {false, true}) {
    const std::string old = dir / (elsewhere ? "left" : "kept"),
                      run = elsewhere ? dir / "new" : old;
    make_old_run(old);
    std::filesystem::remove(file_of(old, 2));
    TrainerOptions options = resuming_options(run, old);
    options.progress = Progress::Style::kLines;
    ::testing::internal::CaptureStderr();
    const TrainResult result = run_once(worsening_recipe(2), options);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the checkpoint of the best weights, of step 2, is missing or broken"),
              std::string::npos)
        << said;
    EXPECT_EQ(result.steps, 8);
    EXPECT_EQ(result.best.best_step, 4) << "the checkpoint's own evaluation counts";
    EXPECT_EQ(best_checkpoint_path(Env::posix(), run), file_of(run, 4));
    EXPECT_TRUE(same_weights(file_of(run, 8), file_of(run, 4)));
  }
}

// The fifth step's learning rate makes the sixth one's loss infinite, and no record is due.
TEST(RestoreBest, ALossThatIsNotFiniteFailsTheRunBeforeAnEvaluationEndsItEarly) {
  const TempDir dir;
  Recipe recipe = worsening_recipe(5);
  recipe.watch.every = 100;
  TrainerOptions options = saving_options(dir / "run");
  options.schedule = [](int64_t step) { return step < 4 ? 1 : 1e30; };
  const Error error = error_of([&] { run_once(recipe, options); });
  EXPECT_NE(error.reason().find("the loss is not finite by step 6, nor is "), std::string::npos)
      << error.what();
  EXPECT_EQ(recorded_steps(dir / "run", "eval"), (std::vector<int64_t>{2, 4}));
}

TEST(FinishedRun, IsNotChangedByAResume) {
  const TempDir dir;
  for (const int patience : {0, 2, 9}) {
    const std::string run = dir / std::to_string(patience);
    const TrainResult first = run_once(worsening_recipe(patience), saving_options(run));
    const auto before = folder_contents(run);
    const TrainResult again = run_once(worsening_recipe(patience), resuming_options(run, run));
    EXPECT_EQ(folder_contents(run), before);
    EXPECT_TRUE(again.was_finished);
    EXPECT_EQ(again.end, first.end);
    EXPECT_EQ(again.steps, first.steps);
    EXPECT_EQ(again.steps_here, 0);
    EXPECT_EQ(again.checkpoint, first.checkpoint);
    ASSERT_TRUE(again.eval);
    EXPECT_EQ(again.eval->loss, first.eval->loss);

    Recipe longer = worsening_recipe(0);
    longer.train.epochs = 3;
    const TrainResult rest = run_once(longer, resuming_options(run, run));
    EXPECT_FALSE(rest.was_finished);
    EXPECT_EQ(rest.steps, 12);
    EXPECT_EQ(rest.steps_here, 12 - first.steps);
  }
}

TEST(FinishedRun, IsFinishedEvenIfItsBestWeightsAreLost) {
  const TempDir dir;
  const Recipe recipe = worsening_recipe(2);
  const std::string run = dir / "run";
  TrainerOptions options = saving_options(run);
  int asked = 0;  // the tenth time after step 5
  options.should_stop = [&] {
    if (++asked == 10) std::filesystem::remove(file_of(run, 2));
    return false;
  };
  run_once(recipe, options);
  ASSERT_EQ(saved_steps(run), (std::vector<int64_t>{6, 4}));
  const auto before = folder_contents(run);
  EXPECT_TRUE(run_once(recipe, resuming_options(run, run)).was_finished);
  EXPECT_EQ(folder_contents(run), before);
}

TEST(FinishedRun, OneWithoutItsLastEvaluationIsNotFinished) {
  const TempDir dir;
  Recipe recipe = often_watched_recipe();
  recipe.train.eval_every_steps = 0;
  recipe.data.eval_source.clear();
  const std::string run = dir / "run";
  run_once(recipe, saving_options(run));
  EXPECT_TRUE(run_once(recipe, resuming_options(run, run)).was_finished);
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  const TrainResult evaluated = run_once(recipe, resuming_options(run, run));
  EXPECT_FALSE(evaluated.was_finished);
  EXPECT_TRUE(evaluated.eval);
  EXPECT_TRUE(run_once(recipe, resuming_options(run, run)).was_finished);
}

// With its final weights, those of step 2, which are not evaluated again.
TEST(FinishedRun, MorePatienceContinuesOneThatStoppedEarly) {
  const TempDir dir;
  Recipe recipe = worsening_recipe(2);
  recipe.train.epochs = 4;
  const std::string run = dir / "run";
  ASSERT_EQ(run_once(recipe, saving_options(run)).steps, 6);
  recipe.train.early_stop = 3;
  const TrainResult result = run_once(recipe, resuming_options(run, run));
  EXPECT_EQ(result.end, RunEnd::kEarlyStop);
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.steps_here, 2);
  EXPECT_EQ(recorded_steps(run, "eval"), (std::vector<int64_t>{2, 4, 6, 8}));
}

}  // namespace
}  // namespace saturate
