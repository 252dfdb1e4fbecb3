// Whole runs on volumes, with a class for each voxel.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "run/checkpoint.h"
#include "saturate/data/input.h"
#include "saturate/evaluator.h"
#include "saturate/model.h"
#include "saturate/task.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/array_testing.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::npy;
using testing::raw;
using testing::TempDir;

constexpr const char* kVolumeRecipe =
    "seed = 3\n[data]\nsource = \"synth-volume:count=48,size=24\"\n"
    "eval_source = \"synth-volume:count=12,size=24,split=test\"\nthreads = 1\n"
    "[augment]\ncrop = \"random\"\nsize = 16\nrotate = 10\nbrightness = 0.1\n"
    "[model]\nname = \"unet3d\"\nwidth = 0.5\n[optimizer]\nname = \"adamw\"\nlr = 0.01\n"
    "[train]\nbatch = 8\nepochs = 5\nthreads = 1\ndevice = \"cpu\"\n[watch]\nevery = 1\n";

class VolumeRun : public ::testing::Test {
 protected:
  using Settings = std::vector<std::string>;

  static Recipe recipe(const Settings& settings = {}) {
    return parse_recipe(kVolumeRecipe, "test", settings);
  }
  TrainerOptions options(const std::string& name) const {
    return testing::saving_options(dir_ / name);
  }
  TrainResult train(const std::string& name, const Settings& settings = {}) {
    return Trainer(Env::posix(), recipe(settings), options(name)).run();
  }
  std::string refusal(const Settings& settings) {
    return error_of([&] { Trainer(Env::posix(), recipe(settings), options("refused")); }).what();
  }

  TempDir dir_;
};

TEST_F(VolumeRun, LearnsTheClassesOfVoxels) {
  const TrainResult result = train("run", {"train.epochs=10"});
  // Background everywhere has an IoU of 0.28, and an accuracy of 0.85. Solids are found before
  // their kinds are told apart.
  EXPECT_GT(result.eval->value("iou").value(), 0.45);
  EXPECT_GT(result.eval->value("accuracy").value(), 0.9);
  const Recipe saved = load_recipe(Env::posix(), dir_ / "run/recipe.toml");
  EXPECT_EQ(saved.train.task, TaskKind::kSegment);
  EXPECT_EQ(saved.model.classes, 3);
  const Checkpoint last = find_checkpoint(Env::posix(), dir_ / "run", [](const std::string&) {});
  ASSERT_EQ(last.fields.size(), 2u);
  EXPECT_TRUE(last.fields[0].is_volume);
  EXPECT_EQ(last.fields[0].shape, (std::vector<int64_t>{16, 16, 16}));
}

TEST_F(VolumeRun, TheRecipeOfAStagedRunIsReadAgain) {
  train("run", {"data.stage=" + dir_.path(), "train.epochs=1"});
  EXPECT_EQ(load_recipe(Env::posix(), dir_ / "run/recipe.toml").train.task, TaskKind::kSegment);
}

TEST_F(VolumeRun, TheLargestBatchIsFound) {
  train("run", {"train.batch=auto", "train.memory_gb=0.2", "train.epochs=1", "data.eval_source="});
  EXPECT_GT(load_recipe(Env::posix(), dir_ / "run/recipe.toml").train.batch, 1);
}

TEST_F(VolumeRun, TheLargestBatchLeavesRoomForWholeVolumes) {
  const auto found = [&](const std::string& setting) {
    const Settings settings = {"data.source=synth-volume:count=400,size=48",
                               "data.eval_source=",
                               "augment.size=8",
                               "train.batch=auto",
                               "train.memory_gb=0.1",
                               setting};
    return Trainer(Env::posix(), recipe(settings), options("auto")).recipe().train.batch;
  };
  // Warped by the loader's threads, a batch in flight has crops of 8; by the stage, it has all.
  EXPECT_GT(found("pipeline.augment=false"), 2 * found("pipeline.augment=true"));
}

TEST_F(VolumeRun, ContinuesAndDividesAmongThreads) {
  train("whole", {"train.epochs=2", "data.eval_source="});
  train("threads", {"train.epochs=2", "data.eval_source=", "data.threads=3"});
  EXPECT_EQ(testing::losses(dir_ / "threads", "step"), testing::losses(dir_ / "whole", "step"));
}

// Half of the volumes have labels for a few voxels only, so that ranks count different numbers.
TEST_F(VolumeRun, TwoAndThreeRanksAreOne) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int i = 0; i < 14; ++i)
    for (int voxel = 0; voxel < 512; ++voxel) {
      RandomStream random(9, 0, uint64_t(i * 512 + voxel), RandomUse(1000));
      const bool inside = (voxel / 64 + i) % 4 < 2;
      x.push_back(float(inside) + float(random.normal()) * 0.2f);
      y.push_back(i % 2 == 0 && voxel % 9 > 0 ? -1 : int64_t(inside));
    }
  testing::write_file(dir_ / "x.npy", npy("<f4", "14, 8, 8, 8", raw(x)));
  testing::write_file(dir_ / "y.npy", npy("<i8", "14, 8, 8, 8", raw(y)));
  const std::string source = "npy:" + dir_.path() + ",volume=x";
  Settings settings = {"data.source=" + source, "data.eval_source=" + source, "augment.crop=none",
                       "augment.size=0",        "augment.rotate=0",           "train.batch=5",
                       "train.epochs=1",        "optimizer.name=sgd",         "model.width=0.25"};
  train("start", settings);  // initial weights would differ: the ranks are threads
  settings.insert(settings.end(),
                  {"train.epochs=2",
                   "model.weights=" + (dir_ / "start/checkpoints/step-00000003.safetensors")});
  const TrainResult one = train("one", settings);
  settings.push_back("distributed.sync_bn=true");
  for (const int world : {2, 3}) {
    const std::string name = std::to_string(world) + " ranks";
    testing::run_ranks(world, [&](Group& group) {
      TrainerOptions own = options(name);
      own.group = std::shared_ptr<Group>(&group, [](Group*) {});
      Trainer(Env::posix(), recipe(settings), own).run();
    });
    const auto found = testing::losses(dir_ / name, "step"),
               expected = testing::losses(dir_ / "one", "step");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << name << i;
    const auto ends = find_checkpoint(Env::posix(), dir_ / name, [](const std::string&) {});
    for (const char* metric : {"accuracy", "iou"})
      EXPECT_NEAR(ends.evaluation->metrics.value(metric).value(), one.eval->value(metric).value(),
                  1e-3)
          << name << metric;
  }
}

// The stage that a GPU's stream has, on a CPU's thread.
TEST_F(VolumeRun, TheAugmentStageGivesTheLoadersLosses) {
  const Settings settings = {"train.epochs=2", "augment.contrast=0.3", "augment.flip=0.5"};
  Settings piped = settings;
  piped.insert(piped.end(), {"pipeline.augment=true", "debug.checks=streams"});
  train("loader", settings);
  train("stage", piped);
  for (const char* kind : {"step", "eval"})
    EXPECT_EQ(testing::losses(dir_ / "stage", kind), testing::losses(dir_ / "loader", kind));
  EXPECT_EQ(load_recipe(Env::posix(), dir_ / "stage/recipe.toml").augment.device,
            AugmentDevice::kCpu);
  train("stages", {"train.epochs=2", "augment.contrast=0.3", "augment.flip=0.5",
                   "pipeline.augment=true", "pipeline.copy=true", "data.threads=2"});
  EXPECT_EQ(testing::losses(dir_ / "stages", "step"), testing::losses(dir_ / "loader", "step"));
}

// Arrays of levels with channels, whose labels are outside the volume in part.
TEST_F(VolumeRun, TakesLevelsOfSeveralChannels) {
  std::vector<uint8_t> x, y;
  for (int i = 0; i < 6; ++i)
    for (int voxel = 0; voxel < 512; ++voxel) {
      RandomStream random(9, 0, uint64_t(i * 512 + voxel), RandomUse(1000));
      const bool inside = (voxel / 64 + i) % 4 < 2;
      x.insert(x.end(),
               {uint8_t(random.below(60)), uint8_t((inside ? 150 : 20) + random.below(60))});
      y.push_back(inside ? 1 : 0);
    }
  testing::write_file(dir_ / "x.npy", npy("|u1", "6, 8, 8, 8, 2", raw(x)));
  testing::write_file(dir_ / "y.npy", npy("|u1", "6, 8, 8, 8", raw(y)));
  const std::string source = "npy:" + dir_.path() + ",volume=x";
  const TrainResult result =
      train("run", {"data.source=" + source, "data.eval_source=" + source, "augment.crop=pad:2",
                    "augment.size=0", "train.batch=3", "train.epochs=10", "augment.flip=0.5"});
  EXPECT_GT(result.eval->value("iou").value(), 0.9);
  const auto input = input_of(open_dataset(Env::posix(), source)->tensors());
  EXPECT_EQ(input.shape, (std::vector<int64_t>{2, 8, 8, 8}));
}

// Labels without the last class; and of more than 64 MiB, whose classes are not counted.
TEST_F(VolumeRun, TheEvaluationMayLackClasses) {
  const auto write = [&](const std::string& folder, const std::string& shape, size_t bytes,
                         const std::string& labels) {
    for (const std::string name : {"x", "y"}) {
      const std::string path = dir_ / (folder + "/" + name + ".npy");
      const std::string text = npy("|u1", shape, name == "y" ? labels : "");
      testing::write_file(path, text);
      std::filesystem::resize_file(path, npy("|u1", shape, "").size() + bytes);  // zeros
    }
    return "npy:" + (dir_ / folder) + ",volume=x";
  };
  const std::string three = write("three", "4, 16, 16, 16", 4 << 12, "\1\2"),
                    two = write("two", "2, 16, 16, 16", 2 << 12, "\1"),
                    many = write("many", "5, 256, 256, 256", 5 << 24, "");
  const auto evaluated = [&](const std::string& source) {
    return train("run-" + std::to_string(source.size()),
                 {"data.source=" + three, "data.eval_source=" + source, "augment.size=8",
                  "train.batch=4", "train.epochs=1"})
        .eval->samples;
  };
  EXPECT_EQ(evaluated(two), 2);
  EXPECT_EQ(evaluated(many), 5);
  Settings more = {"data.source=" + two, "data.eval_source=" + three, "augment.size=8",
                   "train.batch=2", "train.epochs=1"};
  EXPECT_NE(refusal(more).find("Train with model.classes=3"), std::string::npos) << refusal(more);
  more.emplace_back("model.classes=3");
  EXPECT_EQ(train("more", more).eval->samples, 4);
}

// Their loss of 0 would be the best for ever.
TEST_F(VolumeRun, EvaluationsAndEpochsWithoutALabelAreNotTheBest) {
  const auto write = [&](const std::string& folder, const std::string& labels) {
    const std::string shape = "4, 8, 8, 8";
    testing::write_file(dir_ / (folder + "/x.npy"), npy("|u1", shape, std::string(2048, '\7')));
    testing::write_file(dir_ / (folder + "/y.npy"), npy("|u1", shape, labels));
    return "npy:" + (dir_ / folder) + ",volume=x";
  };
  const std::string some = write("some", std::string(1024, '\0') + std::string(1024, '\1')),
                    none = write("none", std::string(2048, '\xff'));
  const Settings all = {"augment.crop=none", "augment.size=0", "augment.rotate=0",
                        "train.batch=4",     "train.epochs=2", "train.early_stop=1",
                        "model.width=0.25",  "model.classes=2"};
  for (const std::string monitor : {"eval_loss", "eval_iou", "train_loss"}) {
    const bool trains = monitor == "train_loss";
    Settings settings = all;
    settings.insert(settings.end(),
                    {"train.monitor=" + monitor, "data.source=" + (trains ? none : some),
                     "data.eval_source=" + (trains ? "" : none)});
    const TrainResult result = train(monitor, settings);
    EXPECT_EQ(result.steps, 2) << monitor << ": not stopped early";
    EXPECT_FALSE(result.best.best) << monitor;
    if (trains) {
      for (const auto& record : testing::read_metrics(dir_ / monitor))
        EXPECT_TRUE(record["kind"] != "epoch" || record["loss"].is_null()) << record;
      continue;
    }
    const auto said =
        testing::run_saturate("eval '" + (dir_ / monitor) + "' --data '" + none + "'");
    EXPECT_EQ(testing::count_lines(said.out), 1) << said.out << said.err;
    EXPECT_TRUE(std::isnan(result.eval->loss) && std::isnan(*result.eval->value("accuracy")));
    EXPECT_NE(format_summary(result).find("nothing in 4 samples is labelled"), std::string::npos);
    testing::run_ranks(2, [&](Group& group) {
      TrainerOptions own = options("two-" + monitor);
      own.group = std::shared_ptr<Group>(&group, [](Group*) {});
      const TrainResult two = Trainer(Env::posix(), recipe(settings), own).run();
      EXPECT_TRUE(std::isnan(two.eval->loss));
      EXPECT_FALSE(two.best.best) << monitor;
    });
  }
}

TEST_F(VolumeRun, RefusesWhatDoesNotFit) {
  EXPECT_NE(refusal({"augment.device=cuda"}).find("the run is not on a GPU"), std::string::npos);
  EXPECT_NE(refusal({"augment.hue=0.1"}).find("augment.hue does not apply to volumes"),
            std::string::npos);
  EXPECT_NE(refusal({"augment.size=12"}).find("multiples of 8"), std::string::npos);
  EXPECT_NE(refusal({"model.name=resnet18_1d"}).find("needs signals"), std::string::npos);
  EXPECT_NE(refusal({"model.classes=2"}).find("the voxels have 3 classes"), std::string::npos);
  EXPECT_NE(refusal({"data.eval_source=synth-volume:count=2,size=8"}).find("the samples are"),
            std::string::npos);
  EXPECT_NE(
      refusal({"data.source=synth-volume:size=4"}).find("is not a whole number from 8 to 512"),
      std::string::npos);
}

}  // namespace
}  // namespace saturate
