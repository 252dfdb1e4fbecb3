// Several processes whose rank 0 writes a checkpoint for longer than the others wait for a rank.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/fault_env.h"
#include "tests/reduce_testing.h"
#include "tests/saving_testing.h"

namespace saturate {
namespace {

using testing::file_of;

// Two ranks; the checkpoint of step 2 takes longer than distributed.timeout_s.
void train_with_a_slow_save(const std::string& run, Recipe recipe) {
  recipe.distributed.timeout_s = 2;
  FaultEnv env(Env::posix());
  env.delay({FileOp::kSync, "step-00000002"}, 4'000'000'000, 4'000'000'000);
  testing::run_ranks(
      2,
      [&](Group& group) {
        TrainerOptions options = testing::saving_options(run);
        options.group = std::shared_ptr<Group>(&group, [](Group*) {});
        testing::run_once(recipe, options, env);
      },
      recipe.distributed);
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

}  // namespace
}  // namespace saturate
