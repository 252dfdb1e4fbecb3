// Whole runs on samples of varying length.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/feed.h"
#include "saturate/model.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/array_testing.h"
#include "tests/closure_graph.h"
#include "tests/folder_run_testing.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::npy;
using testing::raw;
using testing::TempDir;

constexpr const char* kSignals =
    "seed = 3\n[data]\nthreads = 1\n[model]\nname = \"resnet18_1d\"\nwidth = 0.125\n"
    "[optimizer]\nlr = 0.05\n[train]\nbatch = 16\nepochs = 3\nthreads = 1\ndevice = \"cpu\"\n"
    "[watch]\nevery = 1\n";

class LengthRun : public testing::FolderRun {
 protected:
  // x [samples, longest, 2], n and y: noise around 0.6 or -0.6, by the class, and after a sample's
  // end 50 times the other class.
  std::string write_signals(int samples, int longest, uint64_t seed) const {
    std::vector<float> x;
    std::vector<int64_t> y;
    std::vector<int32_t> n;
    for (int i = 0; i < samples; ++i) {
      RandomStream random(seed, 0, uint64_t(i), RandomUse(1000));
      y.push_back(int64_t(random.below(2)));
      n.push_back(2 + int32_t(random.below(uint32_t(longest - 1))));
      const float level = y.back() == 1 ? 0.6f : -0.6f;
      for (int j = 0; j < 2 * longest; ++j)
        x.push_back(j / 2 < n.back() ? level + float(random.normal()) : -50 * level);
    }
    const std::string count = std::to_string(samples);
    testing::ZipText zip(/*deflated=*/false);
    zip.add("x.npy", npy("<f4", count + ", " + std::to_string(longest) + ", 2", raw(x)));
    zip.add("n.npy", npy("<i4", count + ",", raw(n)));
    zip.add("y.npy", npy("<i8", count + ",", raw(y)));
    zip.add("z.npy", npy("<f4", count + ", 2", raw(std::vector<float>(size_t(samples) * 2, 1))));
    const std::string path = dir_ / (count + ".npz");
    testing::write_file(path, zip.text());
    return "npz:" + path + ",lengths=n";
  }

  void SetUp() override {
    source_ = write_signals(320, 50, 9) + ",fields=x+n+y";
    other_ = write_signals(101, 90, 10) + ",fields=x+n+y";
  }

  Recipe recipe(const Settings& settings = {}) const override {
    Settings all = {"data.source=" + source_, "data.eval_source=" + other_};
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe(kSignals, "test", all);
  }
  std::string source_, other_;
};

// The evaluation's samples are longer.
TEST_F(LengthRun, LearnsFromWhatIsNotPadding) {
  const TrainResult result = train("run", {"train.epochs=4"});
  EXPECT_EQ(result.eval->samples, 101);
  EXPECT_GT(result.eval->value("accuracy").value(), 0.85);
  const Checkpoint saved = last("run");
  const TensorField input = input_of(saved.fields);
  EXPECT_TRUE(input.is_sequence);
  EXPECT_EQ(input.shape, (std::vector<int64_t>{3, 56}));
}

TEST_F(LengthRun, AResumedRunIsTheSame) {
  expect_same_after_resuming();
}

// 320 samples in batches of 21 leave 5. At a higher rate differences of rounding grow.
TEST_F(LengthRun, TwoRanksWithJointStatisticsAreOne) {
  train("start", {"train.epochs=1"});  // initial weights would differ: the ranks are threads
  const Settings settings = {
      "train.epochs=1", "train.batch=21", "optimizer.lr=0.002",
      "model.weights=" + (dir_ / "start/checkpoints/step-00000020.safetensors")};
  Settings joint = settings;
  joint.push_back("distributed.sync_bn=true");
  const TrainResult one = train("one", settings);
  testing::run_ranks(2, [&](Group& group) {
    TrainerOptions own = options("two");
    own.group = std::shared_ptr<Group>(&group, [](Group*) {});
    Trainer(Env::posix(), recipe(joint), own).run();
  });
  expect_same_model("two", "one", 1e-4);
  EXPECT_NEAR(last("two").evaluation->metrics.loss, one.eval->loss, 1e-4);
}

TEST_F(LengthRun, MicroBatchesSegmentsPipelinesAndHalfPrecisionTrain) {
  for (const std::string setting :
       {"train.accumulate=2", "train.checkpoint_segments=3", "pipeline.copy=true",
        "precision.mode=bf16", "data.cache=ram"}) {
    const TrainResult result = train(setting, {setting, "optimizer.lr=0.02"});
    EXPECT_GT(result.eval->value("accuracy").value(), 0.75) << setting;
  }
}

TEST_F(LengthRun, AGraphIsNotUsed) {
  TrainerOptions graphed = options("graphed");
  graphed.make_graph = [] { return std::make_unique<ClosureGraph>(); };
  const TrainResult result =
      Trainer(Env::posix(), recipe({"train.graph=auto", "train.epochs=1"}), graphed).run();
  EXPECT_NE(result.graph.find("varying length"), std::string::npos) << result.graph;
}

TEST_F(LengthRun, TheBatchIsSearched) {
  const TrainResult result =
      train("auto", {"train.batch=auto", "train.memory_gb=0.01", "train.epochs=1"});
  EXPECT_GT(result.steps, 0);
}

TEST_F(LengthRun, WhatCannotBeTrainedIsRefused) {
  expect_refused({"model.name=mlp"}, "mlp does not take samples of varying length");
  expect_refused({"train.batch=319"}, "leave a last batch of one image");
  expect_refused({"data.source=npz:" + dir_.path() + "/320.npz,lengths=n,sequence=x"},
                 "also have the field z");
  const std::string varying =
      "npz:" + (dir_ / "320.npz") + ",lengths=n,fields=x+n,target=x,sequence=x";
  expect_refused({"data.source=" + varying, "data.eval_source=" + varying}, "is of varying length");
}

TEST_F(LengthRun, CommandsTakeThem) {
  const std::string run = dir_ / "run";
  train("run", {"train.epochs=1"});
  const auto good = [](const std::string& command) {
    const testing::CommandResult result = testing::run_saturate(command);
    EXPECT_EQ(result.exit_code, 0) << command << result.err;
  };
  good("eval " + run + " --data " + other_);
  for (const std::string format : {"onnx", "torchscript", "safetensors"})
    good("export " + run + " --format " + format + " --out " + (dir_ / format));
  const std::string shard = "shard:" + (dir_ / "a.shard");
  good("data pack " + source_ + " --out " + shard);
  good("eval " + run + " --data " + shard);
}

}  // namespace
}  // namespace saturate
