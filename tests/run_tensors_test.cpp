// Whole runs on samples that are tensors.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "run/checkpoint.h"
#include "saturate/evaluator.h"
#include "saturate/model.h"
#include "saturate/task.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/array_testing.h"
#include "tests/closure_graph.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::npy;
using testing::raw;
using testing::read_metrics;
using testing::TempDir;
using testing::ZipText;

constexpr const char* kTableRecipe =
    "seed = 3\n[data]\nsource = \"synth-table:count=400\"\n"
    "eval_source = \"synth-table:count=101,split=test\"\nthreads = 1\n"
    "[model]\nname = \"mlp\"\n[optimizer]\nname = \"adamw\"\nlr = 0.01\n"
    "[train]\nbatch = 32\nepochs = 4\nthreads = 1\ndevice = \"cpu\"\n[watch]\nevery = 1\n";

class TensorRun : public ::testing::Test {
 protected:
  using Settings = std::vector<std::string>;

  static Recipe table(const Settings& settings = {}) {
    return parse_recipe(kTableRecipe, "test", settings);
  }

  TrainerOptions options(const std::string& name) const {
    return testing::saving_options(dir_ / name);
  }

  TrainResult train(const std::string& name, const Settings& settings = {}) {
    return Trainer(Env::posix(), table(settings), options(name)).run();
  }

  void expect_same_run(const std::string& found, const std::string& expected) {
    EXPECT_EQ(testing::losses(dir_ / found, "step"), testing::losses(dir_ / expected, "step"));
    const Checkpoint a = last(found), b = last(expected);
    ASSERT_EQ(a.model.size(), b.model.size());
    for (size_t i = 0; i < a.model.size(); ++i)
      EXPECT_TRUE(a.model[i].tensor.equal(b.model[i].tensor)) << a.model[i].name;
  }

  Checkpoint last(const std::string& name) const {
    return find_checkpoint(Env::posix(), dir_ / name, [](const std::string&) {});
  }

  void expect_refused(const Settings& settings, const std::string& problem) {
    const Error error =
        error_of([&] { Trainer(Env::posix(), table(settings), options("refused")); });
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
  }

  // x [samples, 2, 3] float32, whose first row decides y: its first value above 0, or both signs.
  std::string write_arrays(int samples, const std::string& kind) {
    std::vector<float> x, z;
    std::vector<int64_t> classes;
    std::vector<uint8_t> labels;
    for (int i = 0; i < samples; ++i) {
      RandomStream random(9, 0, uint64_t(i), RandomUse(1000));
      for (int j = 0; j < 6; ++j) x.push_back(float(random.normal()));
      const float* row = x.data() + 6 * i;
      classes.push_back(kind == "twelve" ? i % 12 : row[0] > 0 ? 1 : row[1] > 0 ? 2 : 0);
      labels.insert(labels.end(), {uint8_t(row[0] > 0), uint8_t(row[1] > 0), uint8_t(row[2] > 0)});
      z.push_back(row[0]);
    }
    const std::string count = std::to_string(samples);
    ZipText zip(/*deflated=*/false);
    zip.add("x.npy", npy("<f4", count + ", 2, 3", raw(x)));
    if (kind == "class" || kind == "twelve")
      zip.add("y.npy", npy("<i8", count + ",", raw(classes)));
    if (kind == "labels") zip.add("y.npy", npy("|u1", count + ", 3", raw(labels)));
    if (kind == "none") zip.add("z.npy", npy("<f4", count + ",", raw(z)));
    const std::string path = dir_ / (kind + count + ".npz");
    testing::write_file(path, zip.text());
    return "npz:" + path;
  }

  TempDir dir_;
};

// ---- Regression
// ----------------------------------------------------------------------------------

TEST_F(TensorRun, RegressesATableAndReportsWhatTheTaskNames) {
  const TrainResult result = train("run", {"watch.csv=true", "train.ema=0.9"});
  EXPECT_EQ(result.unit, "samples");
  EXPECT_GT(result.eval->value("r2").value(), 0.7);
  EXPECT_EQ(result.eval->samples, 101);
  EXPECT_GE(result.best.best, result.eval->value("r2"));
  const Recipe saved = load_recipe(Env::posix(), dir_ / "run/recipe.toml");
  EXPECT_EQ(saved.train.task, TaskKind::kRegress);
  EXPECT_EQ(saved.train.monitor, "eval_r2");
  EXPECT_EQ(saved.model.classes, 1);
  for (const auto& record : read_metrics(dir_ / "run")) {
    EXPECT_TRUE(record["accuracy"].is_null());
    EXPECT_LE(record["r2"].get<double>(), 1);
    EXPECT_GT(record["mae"].get<double>(), 0);
    EXPECT_EQ(record.contains("plain_r2"), record["kind"] == "eval");
  }
  const std::string csv = testing::read_text(dir_ / "run/metrics.csv");
  EXPECT_TRUE(csv.substr(0, csv.find('\n')).ends_with(",r2,mae,plain_r2")) << csv;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "run/classes.json"));
  EXPECT_NE(format_summary(result).find("held out    r2 0."), std::string::npos);
}

TEST_F(TensorRun, ForALossThatIsNotFiniteTheTargetsAreNamed) {
  testing::write_file(dir_ / "x.npy", npy("<f4", "8, 2", raw(std::vector<float>(16, 0.5f))));
  std::vector<float> y(8, 1);
  y[3] = std::nanf("");
  testing::write_file(dir_ / "y.npy", npy("<f4", "8,", raw(y)));
  for (const char* batch : {"train.batch=8", "train.batch=2"}) {
    const Error error = error_of([&] {
      train(batch, {"data.source=npy:" + dir_.path(), "data.eval_source=", batch});
    });
    EXPECT_NE(error.reason().find("the loss is not finite"), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("data inspect npy:"), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("targets"), std::string::npos) << error.what();
  }
}

// The metrics of an evaluation are those of all its samples at once, by the formula.
TEST_F(TensorRun, R2IsOfTheWholeEvaluation) {
  Trainer trainer(Env::posix(), table({"train.eval_batch=7", "train.epochs=1"}), options("run"));
  const TrainResult result = trainer.run();
  Evaluator whole(Env::posix(), trainer.recipe(), "synth-table:count=101,split=test", {}, at::kCPU,
                  false, {}, nullptr, last("run").fields);
  std::vector<double> y, f;
  const auto task = regression(RegressionLoss::kMse, 1);
  whole.run(trainer.model(), *task, [&](const DeviceBatch& batch, const at::Tensor& outputs) {
    for (int64_t i = 0; i < batch.count(); ++i) {
      y.push_back(batch.labels[i].item<double>());
      f.push_back(outputs[i].item<double>());
    }
    return true;
  });
  ASSERT_EQ(y.size(), 101u);
  double mean = 0, errors = 0, spread = 0, absolute = 0;
  for (const double value : y) mean += value / 101;
  for (size_t i = 0; i < y.size(); ++i) {
    errors += (y[i] - f[i]) * (y[i] - f[i]);
    spread += (y[i] - mean) * (y[i] - mean);
    absolute += std::abs(y[i] - f[i]);
  }
  EXPECT_NEAR(result.eval->value("r2").value(), 1 - errors / spread, 1e-9);
  EXPECT_NEAR(result.eval->value("mae").value(), absolute / 101, 1e-9);
  EXPECT_NEAR(result.eval->loss, errors / 101, 1e-6);
}

TEST_F(TensorRun, AResumedRunIsTheSame) {
  train("whole", {"watch.every=3"});
  TrainerOptions first = options("part");
  int polls = 0;
  first.should_stop = [&] { return ++polls > 20; };
  EXPECT_EQ(Trainer(Env::posix(), table({"watch.every=3"}), first).run().end, RunEnd::kInterrupted);
  TrainerOptions rest = options("part");
  rest.resume = rest.out;
  Trainer(Env::posix(), table({"watch.every=3"}), rest).run();
  const Checkpoint a = last("whole"), b = last("part");
  for (size_t i = 0; i < a.model.size(); ++i)
    EXPECT_TRUE(a.model[i].tensor.equal(b.model[i].tensor));
  EXPECT_EQ(a.evaluation->metrics.value("r2"), b.evaluation->metrics.value("r2"));
  EXPECT_EQ(a.best.best, b.best.best);
  const auto epochs = [&](const std::string& name) {
    std::vector<double> values;
    for (const auto& record : read_metrics(dir_ / name))
      if (record["kind"] == "epoch") values.push_back(record["r2"]);
    return values;
  };
  EXPECT_EQ(epochs("whole"), epochs("part"));
}

// A checkpoint of an earlier saturate has fewer sums of the epoch in progress.
TEST_F(TensorRun, OtherSumsOfACheckpointAreNotMixedWithTheRest) {
  TrainerOptions run = options("run");
  int polls = 0;
  run.should_stop = [&] { return ++polls > 20; };
  Trainer(Env::posix(), table(), run).run();
  std::string path;
  Checkpoint saved = find_checkpoint(
      Env::posix(), run.out, [](const std::string&) {}, &path);
  ASSERT_EQ(saved.epoch_metrics.totals.size(), 7u);
  saved.epoch_metrics.totals.resize(5);
  write_checkpoint(Env::posix(), path, saved);
  TrainerOptions rest = options("run");
  rest.resume = rest.out;
  Trainer(Env::posix(), table(), rest).run();
  for (const auto& record : read_metrics(run.out))
    if (record["kind"] == "epoch") {
      EXPECT_NE(record["r2"], 0) << record;
      EXPECT_LT(record["mae"].get<double>(), 10) << record;
    }
}

TEST_F(TensorRun, PipelineGraphAndMicroBatchesAreTheSameTraining) {
  train("plain");
  train("copied", {"pipeline.copy=true", "debug.checks=[\"streams\"]", "data.threads=2"});
  expect_same_run("copied", "plain");
  TrainerOptions graphed = options("graphed");
  graphed.make_graph = [] { return std::make_unique<ClosureGraph>(); };
  const TrainResult result = Trainer(Env::posix(), table({"train.graph=auto"}), graphed).run();
  EXPECT_NE(result.graph.find("steps replayed"), std::string::npos) << result.graph;
  expect_same_run("graphed", "plain");
  const TrainResult parts = train("parts", {"train.accumulate=4"});
  EXPECT_NEAR(parts.eval->loss, last("plain").evaluation->metrics.loss, 1e-4);
}

TEST_F(TensorRun, TwoRanksAreOne) {
  const TrainResult one = train("one");
  testing::run_ranks(2, [&](Group& group) {
    TrainerOptions own = options("two");
    own.group = std::shared_ptr<Group>(&group, [](Group*) {});
    Trainer(Env::posix(), table(), own).run();
  });
  const Checkpoint a = last("one"), b = last("two");
  ASSERT_EQ(b.position.step, a.position.step);
  for (size_t i = 0; i < a.model.size(); ++i)
    EXPECT_LE((a.model[i].tensor - b.model[i].tensor).abs().max().item<double>(), 1e-3);
  const Metrics &found = b.evaluation->metrics, &expected = *one.eval;
  EXPECT_EQ(found.samples, expected.samples);
  for (const auto& [name, value] : expected.values)
    EXPECT_NEAR(found.value(name).value(), value, 1e-3) << name;
  EXPECT_NEAR(found.totals[2], expected.totals[2], 1e-9) << "the sum of the targets";
}

TEST_F(TensorRun, MonitorsAndSchedulesTakeWhatTheTaskNames) {
  const TrainResult found = train("mae", {"train.monitor=eval_mae"});
  double least = 1e9;
  for (const auto& record : read_metrics(dir_ / "mae"))
    if (record["kind"] == "eval") least = std::min(least, record["mae"].get<double>());
  EXPECT_EQ(found.best.best, least) << "lower is better";
  train("plateau", {"schedule.name=plateau", "schedule.metric=mae", "schedule.patience=0",
                    "schedule.threshold=0.9", "optimizer.lr=0.001", "schedule.warmup_epochs=0"});
  std::vector<double> rates;
  for (const auto& record : read_metrics(dir_ / "plateau"))
    if (record["kind"] == "epoch") rates.push_back(record["lr"]);
  EXPECT_LT(rates.back(), rates.front()) << "no evaluation improves by nine tenths";
  expect_refused({"train.monitor=eval_accuracy"}, "Choose one of eval_loss, eval_r2, eval_mae");
  expect_refused({"schedule.name=plateau", "schedule.metric=accuracy"}, "schedule.metric");
}

TEST_F(TensorRun, TheBatchIsSearched) {
  const TrainResult result =
      train("auto", {"train.batch=auto", "train.memory_gb=0.001", "train.epochs=1"});
  EXPECT_GT(result.steps, 0);
  const Error one = error_of([&] {
    train("one", {"train.batch=auto", "data.source=synth-table:count=1",
                  "data.eval_source=", "model.name=resnet18_1d", "model.width=0.25"});
  });
  EXPECT_EQ(one.where(), "data.source") << one.what();
  EXPECT_NE(one.reason().find("the source has one sample, and BatchNorm"), std::string::npos)
      << one.what();
}

// ---- Classes and labels
// --------------------------------------------------------------------------

TEST_F(TensorRun, ClassifiesTensors) {
  const std::string source = write_arrays(600, "class");
  const Settings settings = {"data.source=split:train,1/4," + source,
                             "data.eval_source=split:held,1/4," + source, "train.epochs=12"};
  const TrainResult result = train("run", settings);
  EXPECT_GT(result.eval->value("accuracy").value(), 0.9);
  EXPECT_EQ(last("run").classes.size(), 3u);
  expect_refused({settings[0], settings[1], "train.monitor=eval_accuracy5"}, "no metric");
  EXPECT_TRUE(std::filesystem::exists(dir_ / "run/classes.json"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "run/samples"));
}

// The names of twelve classes have two digits, those of three have one.
TEST_F(TensorRun, TheEvaluationMayLackTheLastClasses) {
  const TrainResult result =
      train("run", {"data.source=" + write_arrays(60, "twelve"), "train.epochs=1",
                    "data.eval_source=" + write_arrays(30, "class")});
  EXPECT_EQ(result.eval->samples, 30);
  EXPECT_EQ(last("run").classes.size(), 12u);
}

TEST_F(TensorRun, TheTrainingDataMayLackTheLastClassesOfTheModel) {
  const Settings settings = {"data.source=" + write_arrays(60, "class"), "train.epochs=1",
                             "data.eval_source=" + write_arrays(30, "twelve")};
  const Error error = error_of([&] { train("refused", settings); });
  EXPECT_NE(error.remedy().find("model.classes=12"), std::string::npos) << error.what();
  Settings more = settings;
  more.emplace_back("model.classes=12");
  const TrainResult result = train("run", more);
  EXPECT_EQ(result.eval->samples, 30);
  EXPECT_TRUE(std::isfinite(result.eval->loss));
  EXPECT_EQ(last("run").classes.size(), 3u);
}

// Its loss of 0 would be the best for ever.
TEST_F(TensorRun, AnEvaluationWithoutSamplesIsNotTheBest) {
  testing::write_file(dir_ / "train.csv", "a,b\n1,2\n3,5\n4,4\n2,1\n");
  testing::write_file(dir_ / "eval.csv", "a,b\n1,\n3,\n");
  const TrainResult result =
      train("run", {"data.source=csv:" + (dir_ / "train.csv"), "data.on_error=skip",
                    "data.eval_source=csv:" + (dir_ / "eval.csv") + ",fit=" + (dir_ / "train.csv"),
                    "train.batch=4", "train.monitor=eval_loss"});
  EXPECT_EQ(result.eval->samples, 0);
  EXPECT_FALSE(result.best.best);
}

TEST_F(TensorRun, SeveralLabelsNeedTheirTask) {
  const std::string source = write_arrays(600, "labels");
  Settings settings = {"data.source=split:train,1/4," + source,
                       "data.eval_source=split:held,1/4," + source, "train.epochs=12"};
  expect_refused(settings, "or multilabel if they are 0 and 1");
  settings.push_back("train.task=multilabel");
  const TrainResult result = train("run", settings);
  EXPECT_GT(result.eval->value("map").value(), 0.95);
  EXPECT_GT(result.eval->value("f1").value(), 0.85);
  EXPECT_EQ(result.eval->values[0].name, "map");
  EXPECT_GE(result.best.best, result.eval->value("map"));
  testing::run_ranks(2, [&](Group& group) {
    TrainerOptions own = options("two");
    own.group = std::shared_ptr<Group>(&group, [](Group*) {});
    Trainer(Env::posix(), table(settings), own).run();
  });
  EXPECT_NEAR(last("two").evaluation->metrics.value("map").value(),
              result.eval->value("map").value(), 1e-3);
  // Two samples for three ranks.
  settings[1] = "data.eval_source=" + write_arrays(2, "labels");
  settings[2] = "train.epochs=1";
  std::vector<double> found(3);
  testing::run_ranks(3, [&](Group& group) {
    TrainerOptions own = options("three");
    own.group = std::shared_ptr<Group>(&group, [](Group*) {});
    found[size_t(group.rank())] =
        Trainer(Env::posix(), table(settings), own).run().eval->value("map").value();
  });
  EXPECT_EQ(found, std::vector<double>(3, found[0]));
  const Settings searched = {"train.batch=auto:64", "train.task=multilabel", "train.epochs=1",
                             "data.source=" + source, "data.eval_source="};
  EXPECT_GT(train("searched", searched).steps, 0);
  settings.push_back("train.monitor=train_map");
  expect_refused(settings, "train_loss, train_f1");
}

TEST_F(TensorRun, NamesOfClassesAreNoNumbers) {
  train("ages", {"data.source=" + write_arrays(60, "twelve"),
                 "data.eval_source=", "train.task=regress", "train.epochs=1"});  // classes 00 to 11
  testing::write_file(dir_ / "a.csv", "a,b\n1,red\n2,green\n3,blue\n4,red\n");
  expect_refused({"data.source=csv:" + (dir_ / "a.csv"), "data.eval_source=", "train.task=regress"},
                 "the target is a class with a name, not a number");
}

TEST_F(TensorRun, AResumedRunHasTheSameTensors) {
  testing::write_file(dir_ / "a.csv", "a,b,y\n1,2,0.5\n2,3,1.5\n3,5,2\n4,1,3\n");
  testing::write_file(dir_ / "b.csv", "a,b,y\n1,red,0.5\n2,green,1.5\n3,blue,2\n4,red,3\n");
  Settings settings = {"data.source=csv:" + (dir_ / "a.csv"), "data.eval_source=", "train.batch=4"};
  train("run", settings);
  settings[0] = "data.source=csv:" + (dir_ / "b.csv");
  TrainerOptions again = options("run");
  again.resume = dir_ / "run";
  const Error error = error_of([&] { Trainer(Env::posix(), table(settings), again); });
  EXPECT_NE(error.reason().find("the samples are x, float32 [4]"), std::string::npos)
      << error.what();
}

TEST_F(TensorRun, WhatIsForImagesIsRefused) {
  expect_refused({"augment.flip=0.25"}, "augment.flip is for images");
  expect_refused({"augment.mixup=0.2"}, "augment.mixup is for images");
  expect_refused({"data.cache=device"}, "data.cache = device is for images");
  expect_refused({"train.tta=flip"}, "train.tta is for images");
  expect_refused({"pipeline.augment=true"}, "pipeline.augment is for images");
  expect_refused({"data.decode_device=cuda", "data.decode=fast"},
                 "data.decode_device = cuda is for images");
  expect_refused({"train.label_smoothing=0.1"}, "train.label_smoothing is for classes");
  expect_refused({"model.name=resnet18"}, "Set model.name=mlp");
  expect_refused({"model.classes=3"}, "the target has 1 values");
  expect_refused({"train.task=segment"}, "the target is not a class for each voxel");
  expect_refused({"train.task=classify"}, "the target is not a class");
  expect_refused({"data.source=" + write_arrays(5, "none")}, "no target to predict");
  expect_refused({"data.eval_source=synth-table:inputs=11"}, "x, float32 [11]; y");
  expect_refused({"data.eval_source=synth:count=10"}, "the samples are images");
  expect_refused({"data.source=synth:count=10", "train.task=regress"}, "no other target");
  expect_refused({"data.source=synth:count=10", "train.loss=l1"}, "train.loss");
  EXPECT_THROW(table({"train.task=classify", "train.loss=l1"}), Error);
}

}  // namespace
}  // namespace saturate
