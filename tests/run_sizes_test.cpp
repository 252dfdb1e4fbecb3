// Runs on images of a height and a width, and of sizes that change by epoch.
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

std::vector<double> losses_of(const std::string& run, const std::string& kind) {
  std::vector<double> found;
  for (const auto& record : testing::read_metrics(run))
    if (record["kind"] == kind) found.push_back(record["loss"]);
  return found;
}

Recipe sized_recipe(const std::string& size, const std::string& model) {
  Recipe recipe = small_recipe("[augment]\nsize = " + size +
                               "\ncrop = \"letterbox\"\n[schedule]\nname = \"constant\"\n");
  recipe.model.name = model;
  recipe.data.eval_source = "synth:size=16,count=40,split=test";
  return recipe;
}

// A run of three epochs, and one that is resumed after the first, end alike.
void expect_resumable(const std::string& size, const ImageSize& last, const std::string& model) {
  const TempDir dir;
  Recipe recipe = sized_recipe(size, model);
  recipe.train.epochs = 3;
  Trainer(Env::posix(), recipe, saving_options(dir / "whole")).run();
  recipe.train.epochs = 1;
  Trainer(Env::posix(), recipe, saving_options(dir / "run")).run();
  recipe.train.epochs = 3;
  TrainerOptions resuming = saving_options(dir / "run");
  resuming.resume = dir / "run";
  Trainer(Env::posix(), recipe, resuming).run();
  EXPECT_EQ(losses_of(dir / "run", "eval").back(), losses_of(dir / "whole", "eval").back());
  const std::string newest = list_checkpoints(Env::posix(), dir / "run/checkpoints").front();
  const Checkpoint saved = read_checkpoint(Env::posix(), newest);
  EXPECT_EQ(saved.image_size, last);
  EXPECT_EQ(parse_saved_recipe(saved.recipe_toml, "run").augment.size, last);
}

TEST(RunSizes, ImagesOfAHeightAndAWidthAreTrainedAndResumed) {
  expect_resumable("[12, 20]", {12, 20}, "mlp");
  expect_resumable("[12, 20]", {12, 20}, "simple_cnn");
}

TEST(RunSizes, SizesByEpochAreTrainedAndResumed) {
  expect_resumable(R"(["0:8", "1:12x16", "2:16"])", 16, "simple_cnn");
}

}  // namespace
}  // namespace saturate
