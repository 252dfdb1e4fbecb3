// Trainers of a C++ program: its own recipes, datasets and tasks, and several trainers in turn.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "saturate/evaluator.h"
#include "saturate/memory.h"
#include "saturate/task.h"
#include "tests/data_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;
using testing::quiet_options;
using testing::small_recipe;
using testing::TempDir;

class ProgramTest : public ::testing::Test {
 protected:
  Error refused(const std::function<void(Recipe&)>& change) const {
    Recipe recipe = small_recipe();
    change(recipe);
    const Error error =
        error_of([&] { Trainer(Env::posix(), recipe, quiet_options(dir / "refused")); });
    EXPECT_FALSE(std::filesystem::exists(dir / "refused")) << error.what();
    return error;
  }

  const TempDir dir;
};

// A checkpoint of such a run could not be read.
TEST_F(ProgramTest, ValuesOutOfRangeAreRefusedBeforeTheRun) {
  const std::vector<std::pair<std::string, std::function<void(Recipe&)>>> cases = {
      {"watch.every is out of range: 0", [](Recipe& to) { to.watch.every = 0; }},
      {"train.accumulate is out of range: 0", [](Recipe& to) { to.train.accumulate = 0; }},
      {"checkpoint.keep is out of range: 0", [](Recipe& to) { to.checkpoint.keep = 0; }},
      {"data.threads is out of range: 2000", [](Recipe& to) { to.data.threads = 2000; }},
      {"seed is out of range: 1152921504606846976",
       [](Recipe& to) { to.seed = uint64_t{1} << 60; }}};
  for (const auto& [reason, change] : cases) {
    const Error error = refused(change);
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.reason(), reason);
    EXPECT_EQ(error.where(), "the program's recipe");
  }
  const Error sizes = refused([](Recipe& to) {
    to.augment.size = 8;
    to.augment.size_changes = {{0, 8}, {1, 16}};
  });
  EXPECT_EQ(sizes.where(), "augment.size") << sizes.what();
}

TEST_F(ProgramTest, AHeightAndAWidthAreInRange) {
  Recipe recipe = small_recipe();
  recipe.augment.size = {16, 24};
  EXPECT_EQ(Trainer(Env::posix(), recipe, quiet_options(dir / "run")).run().steps, 8);
}

TEST_F(ProgramTest, AnEmptyDatasetIsNamed) {
  for (const bool evaluates : {false, true})
    for (const OnError on_error : {OnError::kFail, OnError::kSkip}) {
      Recipe recipe = small_recipe();
      recipe.data.on_error = on_error;
      TrainerOptions options = quiet_options(dir / "run");
      (evaluates ? options.eval_dataset : options.dataset) =
          std::make_shared<MemoryDataset>(std::vector<std::string>());
      const Error error = error_of([&] { Trainer(Env::posix(), recipe, options); });
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_EQ(error.reason(), "the source has no samples");
      EXPECT_EQ(error.where(), evaluates ? "own:" : recipe.data.source);
    }
}

// Classification, with a metric of all outputs of an evaluation at once.
class WholeAccuracy : public Task {
 public:
  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double smoothing) const override {
    return classification().mean_loss(outputs, labels, smoothing);
  }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    return classification().sums(loss, outputs, labels);
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    return classification().metrics(sums, samples);
  }
  std::vector<MetricName> metric_names() const override {
    return {{.name = "accuracy"}, {.name = "whole", .in_training = false}};
  }
  bool keeps_outputs() const override { return true; }
  void whole(const at::Tensor& outputs, const at::Tensor& labels, Metrics& metrics) const override {
    EXPECT_EQ(outputs.scalar_type(), at::kFloat);
    EXPECT_EQ(outputs.dim(), 2);
    EXPECT_EQ(labels.scalar_type(), at::kLong);
    EXPECT_EQ(labels.dim(), 1);
    const at::Tensor hits = outputs.argmax(1).eq(labels);
    metrics.set("whole", hits.to(at::kDouble).mean().item<double>());
  }
};

TEST_F(ProgramTest, AnOwnTasksWholeGetsOutputsAndLabelsAsItsLossDoes) {
  Recipe recipe = small_recipe();
  recipe.data.eval_source = "synth:size=16,count=60,split=test";
  recipe.train.eval_batch = 25;
  TrainerOptions options = quiet_options(dir / "run");
  options.task = std::make_shared<WholeAccuracy>();
  Trainer trainer(Env::posix(), recipe, options);
  const TrainResult result = trainer.run();
  const double accuracy = result.eval.value().value("accuracy").value();
  EXPECT_DOUBLE_EQ(result.eval->value("whole").value(), accuracy);
  // The outputs of an own task need not be a class each.
  EXPECT_FALSE(std::filesystem::exists(dir / "run/classes.json"));

  const std::string source = trainer.recipe().data.eval_source;
  const auto classes = open_dataset(Env::posix(), source)->classes();
  Evaluator evaluator(Env::posix(), trainer.recipe(), source, classes, at::kCPU);
  const auto found = evaluator.run(trainer.model(), *options.task);
  EXPECT_DOUBLE_EQ(found.value().value("whole").value(), accuracy);
  Evaluator half(Env::posix(), trainer.recipe(), source, classes, at::kCPU, /*names=*/false,
                 {.rank = 0, .world = 2});
  EXPECT_FALSE(half.run(trainer.model(), *options.task).value().value("whole")) << "of all shards";
}

TEST_F(ProgramTest, EachOfTwoTrainersStepsWithItsOwnThreads) {
  const int before = at::get_num_threads();
  {
    Recipe two = small_recipe();
    two.train.threads = 2;
    Trainer first(Env::posix(), two, quiet_options(dir / "first"));
    EXPECT_TRUE(first.step());
    EXPECT_EQ(at::get_num_threads(), 2);
    Trainer(Env::posix(), small_recipe(), quiet_options(dir / "second")).run();
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_TRUE(first.step());
    EXPECT_EQ(at::get_num_threads(), 2);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST_F(ProgramTest, ATrainerMadeBeforeTheOneBeforeItEndsKeepsItsMemoryLimit) {
  const TensorMemory& memory = tensor_memory(at::kCPU);
  Recipe recipe = small_recipe();
  recipe.train.memory_gb = 4;
  std::unique_ptr<Trainer> trainer;
  for (const char* run : {"one", "two"}) {
    trainer = std::make_unique<Trainer>(Env::posix(), recipe, quiet_options(dir / run));
    EXPECT_EQ(memory.budget(), int64_t{4} << 30) << run;
  }
  trainer.reset();
  EXPECT_EQ(memory.budget(), 0);
}

}  // namespace
}  // namespace saturate
