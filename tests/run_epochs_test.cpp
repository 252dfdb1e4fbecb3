// Epochs that are not whole: their samples or batches are skipped, or the run ends within one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "run/checkpoint.h"
#include "tests/reduce_testing.h"
#include "tests/saving_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::file_of;
using testing::run_once;
using testing::saving_options;
using testing::TempDir;

// Three batches of four, of which the first ones cannot be read; two epochs' steps.
Recipe skipping_recipe() {
  Recipe recipe = testing::small_recipe();
  recipe.data.on_error = OnError::kSkip;
  recipe.data.shuffle = {ShuffleMode::kNone};
  recipe.augment.size = 16;
  recipe.train.batch = 4;
  recipe.distributed.timeout_s = 30;
  return recipe;
}

std::shared_ptr<Dataset> with_broken(size_t count) {
  std::vector<std::string> files(count, "no image");
  for (uint64_t i = count; i < 12; ++i) files.push_back(testing::noise_jpeg(16, 16, i));
  return std::make_shared<testing::MemoryDataset>(files);
}

// Otherwise a run would train on nothing, or repeat such epochs without end.
TEST(SkippedEpoch, WithoutAnySampleEndsTheRun) {
  const TempDir dir;
  const auto expect_end = [](const Error& error, const std::string& said) {
    EXPECT_EQ(error.exit_code(), 3);
    EXPECT_EQ(error.where(), "memory:0");
    EXPECT_NE(error.reason().find("all samples of an epoch were skipped, the first because: "),
              std::string::npos)
        << error.reason();
    EXPECT_NE(error.remedy().find("data.source"), std::string::npos);
    EXPECT_NE(said.find("skipped memory:11: "), std::string::npos) << said;
  };
  TrainerOptions options = saving_options(dir / "one");
  options.dataset = with_broken(12);
  ::testing::internal::CaptureStderr();
  const Error alone = error_of([&] { run_once(skipping_recipe(), options); });
  expect_end(alone, ::testing::internal::GetCapturedStderr());
  options.out = dir / "two";
  ::testing::internal::CaptureStderr();
  const Error together = error_of([&] {
    testing::run_ranks(2, [&](Group& group) {
      TrainerOptions own = options;
      own.group = std::shared_ptr<Group>(&group, [](Group*) {});
      run_once(skipping_recipe(), own);
    });
  });
  expect_end(together, ::testing::internal::GetCapturedStderr());
}

TEST(SkippedBatch, EpochsEndWhereTheyEndAlsoForTheAverageAndRecords) {
  const TempDir dir;
  const std::string run = dir / "run";
  Recipe recipe = skipping_recipe();
  recipe.train.swa = 0.5;
  recipe.checkpoint.every_steps = 1;
  recipe.checkpoint.keep = 9;
  recipe.checkpoint.background = false;
  TrainerOptions options = saving_options(run);
  options.dataset = with_broken(4);
  ASSERT_EQ(run_once(recipe, options).steps, 6) << "three epochs of two steps";
  std::vector<double> epochs;
  for (const auto& record : testing::read_metrics(run))
    if (record["kind"] == "epoch") epochs.push_back(record["epoch"]);
  EXPECT_EQ(epochs, (std::vector<double>{1, 2, 3}));
  const auto at_4 = testing::weights_of(file_of(run, 4)),
             at_6 = testing::weights_of(file_of(run, 6));
  int compared = 0;
  for (const auto& [name, tensor] : read_checkpoint(Env::posix(), file_of(run, 6)).average)
    if (name == "n_averaged") {
      EXPECT_EQ(tensor.item<int64_t>(), 2);
    } else if (tensor.is_floating_point()) {
      EXPECT_TRUE(at::allclose(tensor, (at_4.at(name) + at_6.at(name)) / 2, 1e-5, 1e-6)) << name;
      ++compared;
    }
  EXPECT_GT(compared, 0);
}

TEST(FractionalEpoch, IsClosedAlsoIfTheRunIsInterruptedAfterItsLastStep) {
  const TempDir dir;
  Recipe recipe = testing::small_recipe();
  recipe.train.epochs = 1.5;
  ASSERT_EQ(run_once(recipe, saving_options(dir / "whole")).steps, 6);
  const std::string cut = dir / "cut";
  TrainerOptions options = saving_options(cut);
  int asked = 0;  // first before step 1
  options.should_stop = [&] { return ++asked > 6; };
  const TrainResult interrupted = run_once(recipe, options);
  EXPECT_EQ(interrupted.end, RunEnd::kInterrupted);
  EXPECT_EQ(interrupted.steps, 6);
  EXPECT_EQ(run_once(recipe, testing::resuming_options(cut, cut)).end, RunEnd::kDone);
  testing::expect_same_losses(cut, dir / "whole", "epoch");
}

}  // namespace
}  // namespace saturate
