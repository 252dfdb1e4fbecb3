// Resumes that are refused: the folder, its branch and its records stay as they are.
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/fault_env.h"
#include "tests/port_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::folder_contents;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

// A run of eight steps, saved after the fourth and the last.
class RefusedResume : public ::testing::Test {
 protected:
  RefusedResume() {
    recipe.watch.every = 1;
    recipe.watch.csv = true;
    Trainer(Env::posix(), recipe, saving_options(run)).run();
    recipe.train.epochs = 3;
  }
  TrainerOptions back_to_4() const {
    TrainerOptions options = saving_options(run);
    options.resume = run + "/checkpoints/step-00000004.safetensors";
    return options;
  }
  // A whole run from step 4, as the refused one would have been.
  void expect_it_still_resumes() {
    EXPECT_EQ(Trainer(Env::posix(), recipe, back_to_4()).run().steps, 12);
    EXPECT_EQ(testing::losses(run, "step").size(), 12u);
  }

  TempDir dir;
  const std::string run = dir / "run";
  Recipe recipe = small_recipe();
};

TEST_F(RefusedResume, ByATakenPortChangesNothing) {
  const testing::TakenPort port;
  const auto before = folder_contents(run);
  recipe.watch.prometheus_port = port.number();
  EXPECT_EQ(error_of([&] { Trainer(Env::posix(), recipe, back_to_4()); }).exit_code(), 2);
  EXPECT_EQ(folder_contents(run), before);
  recipe.watch.prometheus_port = 0;
  expect_it_still_resumes();
}

TEST_F(RefusedResume, AStartThatIsRefusedLeavesNoFolder) {
  const testing::TakenPort port;
  recipe.watch.prometheus_port = port.number();
  error_of([&] { Trainer(Env::posix(), recipe, saving_options(dir / "a/other/")); });
  EXPECT_FALSE(std::filesystem::exists(dir / "a"));
}

// A recipe that a program makes keeps the rules of a recipe file.
TEST_F(RefusedResume, AProgramsRecipeThatBreaksARuleStartsNothing) {
  recipe.precision.mode = PrecisionMode::kBf16O2;
  recipe.train.lookahead = 0.5;
  const Error error = error_of([&] { Trainer(Env::posix(), recipe, saving_options(dir / "new")); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_NE(std::string(error.what()).find("train.lookahead"), std::string::npos) << error.what();
  EXPECT_FALSE(std::filesystem::exists(dir / "new"));
}

TEST_F(RefusedResume, ByAFileThatCannotBeWrittenChangesNothing) {
  recipe.watch.tensorboard = false;
  const auto before = folder_contents(run);
  FaultEnv records(Env::posix());
  Fault refused;
  refused.match = {FileOp::kCreate, "metrics.jsonl"};
  records.inject(refused);
  EXPECT_EQ(error_of([&] { Trainer(records, recipe, back_to_4()); }).exit_code(), 4);
  EXPECT_EQ(folder_contents(run), before);
  for (const char* name : {"recipe.toml", "host.json", "branches.json"})
    for (const FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync}) {
      SCOPED_TRACE(std::string(name) + ", operation " + std::to_string(int(op)));
      FaultEnv env(Env::posix());
      Fault fault;
      fault.match = {op, std::string(name) + ".tmp"};
      env.inject(fault);
      EXPECT_EQ(error_of([&] { Trainer(env, recipe, back_to_4()); }).exit_code(), 4);
      EXPECT_EQ(folder_contents(run), before);
    }
  expect_it_still_resumes();
}

// A crash between two of a start's files must not lose the branch.
TEST_F(RefusedResume, TheBranchIsRecordedBeforeAnyOtherFile) {
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kRename, "recipe.toml"};
  env.inject(fault);
  EXPECT_EQ(error_of([&] { Trainer(env, recipe, back_to_4()); }).exit_code(), 4);
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/branches.json"));
}

TEST_F(RefusedResume, ByAFolderInAFilesPlaceChangesNothing) {
  recipe.watch.csv = recipe.watch.tensorboard = false;
  std::filesystem::rename(run + "/host.json", run + "/kept.json");
  std::filesystem::create_directory(run + "/host.json");
  const auto before = folder_contents(run);
  const Error error = error_of([&] { Trainer(Env::posix(), recipe, back_to_4()); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.where(), run + "/host.json");
  EXPECT_EQ(folder_contents(run), before);
}

// A run of one epoch is complete at step 4: there is nothing to go back for.
TEST_F(RefusedResume, AnOlderCheckpointThatIsCompleteBeginsNoBranch) {
  const auto before = folder_contents(run);
  recipe.train.epochs = 1;
  EXPECT_TRUE(Trainer(Env::posix(), recipe, back_to_4()).run().was_finished);
  EXPECT_EQ(folder_contents(run), before);
}

}  // namespace
}  // namespace saturate
