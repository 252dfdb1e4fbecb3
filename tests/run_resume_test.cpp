// Runs that resume with another metric, other training data, or fewer evaluation classes.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/sources.h"
#include "run/checkpoint.h"
#include "run/same_run.h"
#include "saturate/evaluator.h"
#include "saturate/schedule.h"
#include "tests/app_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

// Two epochs, each evaluated.
Recipe evaluated_recipe() {
  Recipe recipe = small_recipe();
  recipe.data.eval_source = "synth:size=16,count=40,split=test";
  recipe.watch.every = 1;
  return recipe;
}

struct Resumed {
  TrainResult result;
  std::string said;
};

class ResumedRun : public ::testing::Test {
 protected:
  void begin(const Recipe& recipe) { Trainer(Env::posix(), recipe, saving_options(run)).run(); }

  Resumed resume_run(const Recipe& recipe, const TrainerOptions& options = {}) {
    TrainerOptions resuming = options;
    resuming.out = run;
    resuming.resume = run;
    resuming.progress = Progress::Style::kLines;
    ::testing::internal::CaptureStderr();
    Resumed resumed;
    try {
      resumed.result = Trainer(Env::posix(), recipe, resuming).run();
    } catch (...) {
      ::testing::internal::GetCapturedStderr();
      throw;
    }
    resumed.said = ::testing::internal::GetCapturedStderr();
    return resumed;
  }

  std::vector<double> values(const std::string& kind, const std::string& field) const {
    std::vector<double> found;
    for (const auto& record : testing::read_metrics(run))
      if (record["kind"] == kind) found.push_back(record[field]);
    return found;
  }

  TempDir dir;
  const std::string run = dir / "run";
};

// ---- The best value
// ------------------------------------------------------------------------------

// An accuracy of 0.2 would stay the best of losses around 2.
TEST_F(ResumedRun, AnotherMonitorResetsTheBestValue) {
  Recipe recipe = evaluated_recipe();
  recipe.optimizer.lr = 0.01;
  begin(recipe);
  recipe.train.epochs = 4;
  recipe.train.monitor = "eval_loss";
  recipe.train.early_stop = 2;
  const Resumed resumed = resume_run(recipe);
  const auto losses = values("eval", "loss");
  ASSERT_EQ(losses.size(), 4u);
  // The checkpoint's own evaluation counts: it may be the best.
  EXPECT_EQ(resumed.result.best.best, *std::min_element(losses.begin() + 1, losses.end()));
  EXPECT_EQ(
      read_checkpoint_state(Env::posix(), best_checkpoint_path(Env::posix(), run)).position.step,
      resumed.result.best.best_step);
  EXPECT_NE(resumed.said.find("train.monitor has changed: its best value is reset"),
            std::string::npos)
      << resumed.said;
}

// Its file still names the best step of the former metric.
TEST_F(ResumedRun, ACheckpointThatIsTheBestByAnotherMonitorIsSavedAgain) {
  Recipe recipe = evaluated_recipe();
  recipe.checkpoint.keep = 1;
  begin(recipe);
  recipe.train.epochs = 5;
  recipe.train.monitor = "eval_loss";
  recipe.train.min_delta = 100;  // no later value improves by so much
  recipe.train.early_stop = 2;
  const Resumed resumed = resume_run(recipe);
  EXPECT_EQ(resumed.result.end, RunEnd::kEarlyStop);
  EXPECT_EQ(resumed.result.best.best_step, 8);
  const std::string best = best_checkpoint_path(Env::posix(), run);
  EXPECT_EQ(best, run + "/checkpoints/step-00000008.safetensors");
  const Checkpoint last = read_checkpoint(Env::posix(), resumed.result.checkpoint),
                   restored = read_checkpoint(Env::posix(), best);
  EXPECT_EQ(last.position.step, 16);
  for (size_t i = 0; i < last.model.size(); ++i)
    EXPECT_TRUE(last.model[i].tensor.equal(restored.model[i].tensor)) << last.model[i].name;
}

// "auto" is the direction of the metric: a lower mae is better.
TEST_F(ResumedRun, TheDirectionOfAMonitorIsItsMetrics) {
  Recipe recipe = parse_recipe(
      "[data]\nsource = \"synth-table:count=40\"\neval_source = "
      "\"synth-table:count=20,split=test\"\nthreads = 1\n[model]\nname = \"mlp\"\n[train]\nbatch = "
      "20\nepochs = 1\nmonitor = \"eval_mae\"\nthreads = 1\ndevice = \"cpu\"\n",
      "test");
  begin(recipe);
  recipe.train.epochs = 2;
  recipe.train.monitor_mode = MonitorMode::kMin;
  EXPECT_EQ(resume_run(recipe).said.find("is reset"), std::string::npos);
  recipe.train.epochs = 3;
  recipe.train.monitor_mode = MonitorMode::kMax;
  EXPECT_NE(resume_run(recipe).said.find("its best value is reset"), std::string::npos);
}

TEST_F(ResumedRun, AnotherDirectionOfTheMonitorResetsTheBestValueToo) {
  Recipe recipe = evaluated_recipe();
  begin(recipe);
  recipe.train.epochs = 3;
  recipe.train.monitor_mode = MonitorMode::kMin;
  EXPECT_NE(resume_run(recipe).said.find("its best value is reset"), std::string::npos);
}

TEST_F(ResumedRun, TheSameMonitorKeepsItsBestValueWithoutAMessage) {
  Recipe recipe = evaluated_recipe();
  begin(recipe);
  recipe.train.epochs = 3;
  recipe.train.monitor_mode = MonitorMode::kMax;  // as auto resolves it
  const Resumed resumed = resume_run(recipe);
  const auto accuracies = values("eval", "accuracy");
  EXPECT_EQ(resumed.result.best.best, *std::max_element(accuracies.begin(), accuracies.end()));
  EXPECT_EQ(resumed.said.find("is reset"), std::string::npos) << resumed.said;
}

TEST_F(ResumedRun, AnotherEvaluationSetResetsTheBestValue) {
  Recipe recipe = evaluated_recipe();
  begin(recipe);
  recipe.train.epochs = 3;
  recipe.data.eval_source = "synth:size=16,count=30,split=test";
  const Resumed resumed = resume_run(recipe);
  EXPECT_EQ(resumed.result.best.best_step, 12);
  EXPECT_NE(resumed.said.find("the evaluation has 30 images, and had 40"), std::string::npos)
      << resumed.said;
}

TEST_F(ResumedRun, AnotherPlateauMetricDoesNotDropTheRate) {
  Recipe recipe = evaluated_recipe();
  recipe.schedule.name = "plateau";
  begin(recipe);
  recipe.train.epochs = 4;
  recipe.schedule.metric = "accuracy";
  recipe.schedule.patience = 0;  // an accuracy is below any loss of ten classes
  const Resumed resumed = resume_run(recipe);
  EXPECT_EQ(values("epoch", "lr").back(), recipe.optimizer.lr);
  EXPECT_NE(resumed.said.find(
                "schedule.metric has changed: the schedule compares only later evaluations"),
            std::string::npos)
      << resumed.said;
}

TEST(ResumedPlateau, ADroppedRateStaysDroppedWhenTheMetricChanges) {
  ScheduleOptions options;
  options.name = "plateau";
  options.patience = 0;
  Schedule schedule(options, 100, 10);
  for (const double loss : {1.0, 2.0}) schedule.observe(loss, 0);
  ASSERT_DOUBLE_EQ(schedule.factor(0), 0.1);
  schedule.forget_best();
  schedule.observe(5, 0);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.1) << "the first value";
  schedule.observe(6, 0);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.01);
}

// ---- The recipe
// ----------------------------------------------------------------------------------

TEST_F(ResumedRun, AKeyThatMayNotChangeIsRefusedWithBothValues) {
  const Recipe recipe = small_recipe();
  begin(recipe);
  const auto refused = [&](const Recipe& other) { return error_of([&] { resume_run(other); }); };
  Recipe other = recipe;
  other.train.batch = 50;
  const Error batch = refused(other);
  EXPECT_EQ(batch.kind(), ErrorKind::kUsage);
  EXPECT_EQ(batch.reason(), "train.batch is 50, and was 25 in the run to resume");
  EXPECT_NE(batch.where().find("step-00000008.safetensors"), std::string::npos) << batch.where();
  other.seed = 7;
  EXPECT_EQ(refused(other).reason(),
            "seed is 7, and was 0; train.batch is 50, and was 25 in the run to resume");
}

TEST_F(ResumedRun, TensorsThatDoNotFitAreNamedWithTheChangedKeys) {
  const Recipe recipe = small_recipe();
  begin(recipe);
  const auto expect_refused = [&](const Recipe& other, const std::string& changes) {
    const Error error = error_of([&] { resume_run(other); });
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find(changes), std::string::npos) << error.reason();
    EXPECT_NE(error.remedy().find("model.weights"), std::string::npos) << error.remedy();
  };
  Recipe model = recipe, optimizer = recipe;
  model.model.name = "simple_cnn";
  model.optimizer.lr = 0.01;  // may change, and is not a cause
  expect_refused(model, ": model.name is 'simple_cnn', and was 'mlp' in the run to resume");
  optimizer.optimizer.name = "adamw";
  expect_refused(optimizer, ": optimizer.name is 'adamw', and was 'sgd' in the run to resume");
}

// ---- The training data
// ---------------------------------------------------------------------------

TEST_F(ResumedRun, TrainingDataOfAnotherSizeAreRefusedUnlessAllowed) {
  Recipe recipe = small_recipe();
  begin(recipe);
  recipe.data.source = "synth:size=16,count=120";
  recipe.train.epochs = 4;
  const Error error = error_of([&] { resume_run(recipe); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), recipe.data.source);
  EXPECT_EQ(error.reason(), "the training data have 120 images, and the run to resume had 100");
  EXPECT_NE(error.remedy().find("--allow-changed-data"), std::string::npos);
  EXPECT_NE(error.remedy().find("model.weights"), std::string::npos);
  EXPECT_NE(error.remedy().find("Give the data that it had, synth:size=16,count=100;"),
            std::string::npos)
      << error.remedy();
  TrainerOptions options;
  options.changed_data = true;
  EXPECT_EQ(resume_run(recipe, options).result.steps, 20) << "four epochs of five steps";
}

TEST_F(ResumedRun, OtherClassNamesAreRefusedUnlessAllowed) {
  Recipe recipe = small_recipe();
  recipe.augment.size = 16;
  std::vector<std::string> files;
  for (uint64_t i = 0; i < 50; ++i) files.push_back(testing::noise_jpeg(16, 16, i));
  const auto named = [&](const std::vector<std::string>& classes) {
    return std::make_shared<MemoryDataset>(files, classes);
  };
  TrainerOptions options = saving_options(run);
  options.dataset = named({"a", "caf\xe9", "dog"});
  Trainer(Env::posix(), recipe, options).run();
  recipe.train.epochs = 3;
  EXPECT_EQ(resume_run(recipe, options).result.steps, 6) << "a name need not be UTF-8";
  options.dataset = named({"a", "b", "dogs"});
  recipe.train.epochs = 4;
  const Error error = error_of([&] { resume_run(recipe, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("class 1 of the training data is \"b\", and was \"caf"),
            std::string::npos)
      << error.reason();
  options.changed_data = true;
  EXPECT_EQ(resume_run(recipe, options).result.steps, 8);
  options.dataset = named({"a", "b"});
  EXPECT_EQ(error_of([&] { resume_run(recipe, options); }).reason(),
            "the training data have 2 classes, and the run to resume had 3");
}

// ---- Evaluation data
// -----------------------------------------------------------------------------

TEST(EvaluationClasses, AreMatchedByName) {
  const std::vector<std::string> model = {"ant", "bee", "cat"};
  const auto labels = [&](const std::vector<std::string>& classes) {
    return labels_in_model(model, MemoryDataset({"x"}, classes), "folder:val", 4);
  };
  EXPECT_TRUE(labels({"ant", "bee", "cat"}).empty());
  EXPECT_TRUE(labels({"ant", "bee"}).empty()) << "the same numbers";
  EXPECT_EQ(labels({"bee", "cat"}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(labels({"cat"}), (std::vector<int64_t>{2}));
  const Error error = error_of([&] { labels({"bee", "cow"}); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), "folder:val");
  EXPECT_NE(error.reason().find("class \"cow\" is unknown to the training data"),
            std::string::npos);
  EXPECT_EQ(error.remedy(), "Remove its samples from the source, or train on data with this class");
}

// Training data may lack the last of the numbers for which a model has outputs.
TEST(EvaluationClasses, NumbersMayBeAsManyAsTheModelsOutputs) {
  const auto labels = [](size_t trained, size_t evaluated, int64_t outputs) {
    return labels_in_model(number_classes(trained), MemoryDataset({"x"}, number_classes(evaluated)),
                           "npy:val", outputs);
  };
  EXPECT_TRUE(labels(3, 5, 5).empty()) << "the same numbers";
  EXPECT_TRUE(labels(3, 12, 16).empty()) << "0 and 00 are the same number";
  const Error error = error_of([&] { labels(3, 5, 4); });
  EXPECT_NE(error.reason().find("class \"4\" is unknown"), std::string::npos) << error.reason();
  EXPECT_EQ(error.remedy(), "Remove its samples from the source, or train with model.classes=5");
}

// In a time that grows with their number, not with its square.
TEST(EvaluationClasses, ManyAreMatchedInAnyOrderAndWithOtherZeros) {
  const size_t count = 200'000;
  EXPECT_TRUE(labels_in_model(number_classes(count),
                              MemoryDataset({"x"}, number_classes(count / 4)), "tar:val",
                              int64_t(count))
                  .empty());
  std::vector<std::string> names;
  std::vector<int64_t> expected;
  for (size_t i = 0; i < count; ++i) {
    names.push_back("n" + std::to_string(i));
    expected.push_back(int64_t(count - 1 - i));
  }
  const std::vector<std::string> reversed(names.rbegin(), names.rend());
  EXPECT_EQ(labels_in_model(names, MemoryDataset({"x"}, reversed), "tar:val", int64_t(count)),
            expected);
}

// Bytes that are not UTF-8, as present and older checkpoints store them.
TEST(EvaluationClasses, NamesThatAreNotUtf8AreDistinguished) {
  const MemoryDataset data({"x", "y"}, {"gr\xf6n", "gr\xfcn"});
  EXPECT_TRUE(labels_in_model({"gr\\xf6n", "gr\\xfcn"}, data, "folder:val", 2).empty());
  EXPECT_EQ(
      labels_in_model({"a", "gr\xef\xbf\xbdn"}, MemoryDataset({"x"}, {"gr\xf6n"}), "folder:val", 2),
      (std::vector<int64_t>{1}));
}

// Only the second and third of its classes, from each kind of source.
TEST(EvaluationClasses, LabelsAreTheModels) {
  const TempDir dir;
  for (const char* name : {"bee/1.jpg", "cat/1.jpg", "cat/2.jpg"}) {
    const std::string path = dir / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    testing::write_file(path, testing::noise_jpeg(16, 16, 1));
  }
  Recipe recipe = small_recipe();
  recipe.augment.size = 16;
  recipe.model.classes = 3;
  recipe.train.eval_batch = 2;
  for (const CacheMode cache : {CacheMode::kNone, CacheMode::kRam, CacheMode::kDevice})
    for (const CacheForm form : {CacheForm::kEncoded, CacheForm::kDecoded}) {
      recipe.data.cache.mode = cache;
      recipe.data.cache.form = form;
      Evaluator evaluator(Env::posix(), recipe, "folder:" + (dir / "."), {"ant", "bee", "cat"},
                          at::kCPU);
      const auto model = make_model(recipe.model, {3, 16, Env::posix()});
      for (int again = 0; again < 2; ++again) {
        std::vector<int64_t> labels;
        evaluator.run(*model, classification(), [&](const DeviceBatch& batch, const at::Tensor&) {
          for (int64_t i = 0; i < batch.count(); ++i)
            labels.push_back(batch.labels[i].item<int64_t>());
          return true;
        });
        EXPECT_EQ(labels, (std::vector<int64_t>{1, 2, 2})) << int(cache) << int(form);
      }
    }
}

}  // namespace
}  // namespace saturate
