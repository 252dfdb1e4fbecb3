// Several processes of which one writes or reads a checkpoint, or opens its data, for longer than
// the others wait for a rank.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "run/checkpoint.h"
#include "saturate/observer.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/reduce_testing.h"
#include "tests/saving_testing.h"

namespace saturate {
namespace {

using testing::file_of;

// Longer than distributed.timeout_s below.
void make_slow(FaultEnv& env, FileOp op) {
  env.delay({op, "step-00000002"}, 4'000'000'000, 4'000'000'000);
}

void train_two_ranks(Recipe recipe, const TrainerOptions& options, FaultEnv& env) {
  recipe.distributed.timeout_s = 2;
  testing::run_ranks(
      2,
      [&](Group& group) {
        TrainerOptions own = options;
        own.group = std::shared_ptr<Group>(&group, [](Group*) {});
        testing::run_once(recipe, own, env);
      },
      recipe.distributed);
}

// Two ranks; the checkpoint of step 2 takes long.
void train_with_a_slow_save(const std::string& run, const Recipe& recipe) {
  FaultEnv env(Env::posix());
  make_slow(env, FileOp::kSync);
  train_two_ranks(recipe, testing::saving_options(run), env);
}

TEST(SlowSave, TheOtherRanksWaitForTheOneBeforeTheLast) {
  const testing::TempDir dir;
  Recipe recipe = testing::often_watched_recipe();
  recipe.data.eval_source.clear();
  recipe.checkpoint.background = true;
  train_with_a_slow_save(dir / "run", recipe);
  EXPECT_TRUE(std::filesystem::exists(file_of(dir / "run", 8)));
}

TEST(SlowSave, TheOtherRanksWaitIfItIsInTheForeground) {
  const testing::TempDir dir;
  Recipe recipe = testing::often_watched_recipe();
  recipe.data.eval_source.clear();
  train_with_a_slow_save(dir / "run", recipe);
  EXPECT_EQ(testing::saved_steps(dir / "run"), (std::vector<int64_t>{8, 6, 4, 2}));
}

TEST(SlowSave, TheOtherRanksWaitForACopyOfTheBestWeightsOfAnotherFolder) {
  const testing::TempDir dir;
  const std::string old = dir / "old", run = dir / "new";
  Recipe recipe = testing::worsening_recipe(0);
  recipe.train.epochs = 1;
  testing::run_once(recipe, testing::saving_options(old));
  recipe.train.epochs = 2;
  FaultEnv env(Env::posix());
  make_slow(env, FileOp::kSync);
  train_two_ranks(recipe, testing::resuming_options(run, old), env);
  EXPECT_EQ(best_checkpoint_path(Env::posix(), run), file_of(run, 2));
  EXPECT_TRUE(testing::same_weights(file_of(run, 2), file_of(old, 2)));
}

// As a disk that becomes slow before the run ends early.
class SlowAtTheEnd : public Observer {
 public:
  explicit SlowAtTheEnd(FaultEnv& env) : env_(env) {}
  void after_evaluation(const EvaluationEvent& event, ObserverContext& context) override {
    if (context.rank() == 0 && event.position.step == 6) make_slow(env_, FileOp::kOpen);
  }

 private:
  FaultEnv& env_;
};

TEST(SlowSave, TheOtherRanksWaitForEachThatReadsTheBestWeights) {
  const testing::TempDir dir;
  const std::string run = dir / "run";
  Recipe recipe = testing::worsening_recipe(2);
  recipe.checkpoint.every_steps = 0;
  FaultEnv env(Env::posix());
  TrainerOptions options = testing::saving_options(run);
  options.observers = {std::make_shared<SlowAtTheEnd>(env)};
  train_two_ranks(recipe, options, env);
  EXPECT_TRUE(testing::same_weights(file_of(run, 6), file_of(run, 2)));
}

// As one that is copied first.
class SlowToOpen : public testing::MemoryDataset {
 public:
  explicit SlowToOpen(std::chrono::seconds takes)
      : MemoryDataset(std::vector<std::string>(50, testing::noise_jpeg(16, 16, 1))),
        takes_(takes) {}
  std::vector<ObjectVersion> versions() const override {
    std::this_thread::sleep_for(takes_);
    return {};
  }

 private:
  const std::chrono::seconds takes_;
};

TEST(SlowStart, TheOtherRanksWaitForTheOneThatOpensItsData) {
  const testing::TempDir dir;
  Recipe recipe = testing::small_recipe();
  recipe.augment.size = 16;
  recipe.distributed.timeout_s = 2;
  testing::run_ranks(
      2,
      [&](Group& group) {
        TrainerOptions own = testing::quiet_options(dir / "run");
        own.group = std::shared_ptr<Group>(&group, [](Group*) {});
        own.dataset = std::make_shared<SlowToOpen>(std::chrono::seconds(group.rank() == 1 ? 5 : 0));
        EXPECT_EQ(testing::run_once(recipe, own).steps, 4);
      },
      recipe.distributed);
}

}  // namespace
}  // namespace saturate
