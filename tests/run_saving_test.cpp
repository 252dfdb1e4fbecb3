// Whole runs that resume older checkpoints, or run out of time or disk space: what they save, and
// where they resume.
#include <ATen/ops/lerp.h>
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
using testing::expect_same_losses;
using testing::file_of;
using testing::folder_contents;
using testing::often_watched_recipe;
using testing::resuming_options;
using testing::run_once;
using testing::same_weights;
using testing::saved_steps;
using testing::saving_options;
using testing::TempDir;
using testing::weights_of;
using testing::worsening_recipe;

const auto kNoWarning = [](const std::string& text) { ADD_FAILURE() << text; };

int64_t last_recorded_step(const std::string& run) {
  return testing::read_metrics(run).back()["step"];
}

TEST(ResumingAnOlderCheckpoint, TheNewBranchIsUsedFromThenOn) {
  const TempDir dir;
  const std::string run = dir / "run";
  run_once(often_watched_recipe(), saving_options(run));
  ASSERT_EQ(saved_steps(run), (std::vector<int64_t>{8, 6, 4, 2}));

  // A crash before the first save.
  TrainerOptions options = resuming_options(run, file_of(run, 4));
  options.should_stop = []() -> bool { throw std::runtime_error("crash"); };
  EXPECT_THROW(run_once(often_watched_recipe(), options), std::runtime_error);
  EXPECT_EQ(find_checkpoint(Env::posix(), run, kNoWarning).position.step, 4);
  EXPECT_EQ(last_recorded_step(run), 4);

  options = resuming_options(run, run);
  int asked = 0;
  options.should_stop = [&] { return ++asked > 1; };
  EXPECT_EQ(run_once(often_watched_recipe(), options).steps, 5);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{5, 4, 2}));
  EXPECT_TRUE(std::filesystem::exists(file_of(run, 8)));
  const TrainResult rest = run_once(often_watched_recipe(), resuming_options(run, run));
  EXPECT_EQ(rest.steps_here, 3);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{8, 6, 5, 4, 2}));
}

TEST(ResumingAnOlderCheckpoint, ARefusedResumeKeepsTheBranch) {
  const TempDir dir;
  const std::string run = dir / "run";
  run_once(often_watched_recipe(), saving_options(run));
  Recipe other = often_watched_recipe();
  other.train.batch = 50;
  const auto before = folder_contents(run);
  const Error error =
      error_of([&] { Trainer(Env::posix(), other, resuming_options(run, file_of(run, 4))); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(folder_contents(run), before);
}

TEST(ResumingAnOlderCheckpoint, ANewRunInAnotherRunsFolderKeepsItsFiles) {
  const TempDir dir;
  const std::string run = dir / "run";
  run_once(often_watched_recipe(), saving_options(run));
  std::filesystem::remove(run + "/metrics.jsonl");
  TrainerOptions options = saving_options(run);
  int asked = 0;
  options.should_stop = [&] { return ++asked > 5; };  // two of them in step 2's evaluation
  EXPECT_EQ(run_once(often_watched_recipe(), options).steps, 3);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{3, 2}));
}

// An hour passes with each line of metrics.jsonl.
void let_records_take_an_hour(FaultEnv& env) {
  env.use_fake_clock();
  env.delay({FileOp::kWrite, "metrics.jsonl"}, 3'600'000'000'000, 3'600'000'000'000);
}

TEST(TimeLimit, SavesTheRealStateAndItsOwnEvaluationDoesNotCount) {
  const TempDir dir;
  Recipe recipe = worsening_recipe(3);
  recipe.train.epochs = 4;
  const std::string whole = dir / "whole", cut = dir / "cut";
  const TrainResult expected = run_once(recipe, saving_options(whole));
  EXPECT_EQ(expected.end, RunEnd::kEarlyStop);
  FaultEnv env(Env::posix());
  let_records_take_an_hour(env);
  recipe.train.max_minutes = 4 * 60 - 1;  // two steps, an evaluation, and another step
  const TrainResult limited = run_once(recipe, saving_options(cut), env);
  ASSERT_EQ(limited.end, RunEnd::kTimeLimit);
  ASSERT_EQ(limited.steps, 3);
  EXPECT_EQ(limited.best.waited, 0);
  const Checkpoint last = read_checkpoint(Env::posix(), file_of(cut, 3));
  ASSERT_TRUE(last.evaluation) << "it is evaluated, all the same";
  EXPECT_EQ(last.evaluation->step, 3);
  EXPECT_FALSE(same_weights(file_of(cut, 3), file_of(cut, 2)));

  recipe.train.max_minutes = 0;
  const TrainResult rest = run_once(recipe, resuming_options(cut, cut));
  EXPECT_EQ(rest.end, RunEnd::kEarlyStop);
  EXPECT_EQ(rest.steps, expected.steps);
  expect_same_losses(cut, whole, "step");
  EXPECT_TRUE(same_weights(file_of(cut, 8), file_of(whole, 8)));
}

TEST(TimeLimit, AtTheLastStepTheRunIsDone) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  let_records_take_an_hour(env);
  Recipe recipe = worsening_recipe(9);
  recipe.train.max_minutes = 12 * 60 - 1;
  const TrainResult result = run_once(recipe, saving_options(dir / "run"), env);
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.end, RunEnd::kDone);
  EXPECT_TRUE(same_weights(file_of(dir / "run", 8), file_of(dir / "run", 2))) << "restored";
}

TEST(Lookahead, SlowWeightsStartBeforeTheFirstStep) {
  const TempDir dir;
  Recipe recipe = often_watched_recipe();
  recipe.train.epochs = 0.25;
  const auto weights_after = [&](const std::string& name) {
    run_once(recipe, saving_options(dir / name));
    return weights_of(file_of(dir / name, 1));
  };
  const auto stepped = weights_after("stepped");
  recipe.train.lookahead = 0.25;
  recipe.train.lookahead_every = 1;
  const auto slow = weights_after("slow");
  recipe.train.lookahead = 0;
  recipe.optimizer.lr = 0;
  const auto drawn = weights_after("drawn");
  int moved = 0;
  for (const auto& [name, tensor] : slow) {
    if (!tensor.is_floating_point()) continue;
    moved += !stepped.at(name).equal(drawn.at(name));
    EXPECT_TRUE(tensor.equal(at::lerp(drawn.at(name), stepped.at(name), 0.75))) << name;
  }
  EXPECT_GT(moved, 0);
}

struct SmallDisk : FaultEnv {
  using FaultEnv::FaultEnv;
  uint64_t free_bytes(const std::string&) override { return room; }
  uint64_t room = 0;
};

TEST(Room, ForTwoCheckpointsIsCheckedAtTheStart) {
  const TempDir dir;
  Recipe recipe = often_watched_recipe();
  recipe.optimizer.name = "adam";
  recipe.train.ema = 0.9;
  recipe.train.lookahead = 0.5;
  run_once(recipe, saving_options(dir / "large"));
  const uint64_t one = std::filesystem::file_size(file_of(dir / "large", 2));
  SmallDisk env(Env::posix());
  const std::string run = dir / "run";
  const auto set_up = [&] { Trainer(env, recipe, saving_options(run)); };
  for (const double room : {0.0, 1.0, 1.9}) {
    env.room = uint64_t(room * double(one));
    const Error error = error_of(set_up);
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_EQ(error.where(), run + "/checkpoints");
    EXPECT_NE(error.reason().find("two checkpoints take "), std::string::npos) << error.what();
    EXPECT_FALSE(Env::posix().exists(run + "/recipe.toml"));
  }
  env.room = 2 * one;
  EXPECT_EQ(run_once(recipe, saving_options(run), env).steps, 8);

  // The next one, for a run that has one.
  recipe.train.epochs = 3;
  env.room = one / 2;
  const Error error = error_of([&] { Trainer(env, recipe, resuming_options(run, run)); });
  EXPECT_NE(error.reason().find("the next checkpoint takes "), std::string::npos) << error.what();
  env.room = one;
  EXPECT_EQ(run_once(recipe, resuming_options(run, run), env).steps, 12);
  TrainerOptions measured = saving_options(dir / "measured");
  measured.save = false;
  env.room = 0;
  EXPECT_EQ(run_once(recipe, measured, env).steps, 12);
}

TEST(FailedRun, HasItsResultsUpToTheFailure) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "step-00000008"};
  env.inject(fault);
  Trainer trainer(env, often_watched_recipe(), saving_options(dir / "run"));
  EXPECT_EQ(error_of([&] { trainer.run(); }).exit_code(), 4);
  const TrainResult failed = trainer.so_far();
  EXPECT_EQ(failed.end, RunEnd::kFailed);
  EXPECT_EQ(failed.steps, 8);
  EXPECT_EQ(failed.checkpoint, file_of(dir / "run", 6));
  EXPECT_TRUE(failed.eval && failed.train);
  EXPECT_GT(failed.tensor_peaks[Phase::kForward], 0);
  const std::string text = format_summary(failed);
  EXPECT_NE(text.find("failed at step 8"), std::string::npos) << text;
  EXPECT_NE(text.find("where time went"), std::string::npos) << text;
}

}  // namespace
}  // namespace saturate
