// Whole runs of segmentation: serial, and in a pipeline with a frozen encoder.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "record/metrics.h"
#include "run/checkpoint.h"
#include "saturate/data/random.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

constexpr const char* kRecipe =
    "[data]\nsource = \"synth:size=16,count=64,classes=2,masks=true\"\nthreads = 1\n"
    "[augment]\ncrop = \"pad:2\"\nrotate = 10\n"
    "[model]\nname = \"toy_seg\"\nwidth = 0.25\n"
    "[optimizer]\nname = \"adamw\"\nlr = 0.01\n"
    "[train]\ntask = \"segment\"\nbatch = 8\nepochs = 2\nthreads = 1\ndevice = \"cpu\"\n"
    "[watch]\nevery = 1\n";

Recipe recipe_with(const std::vector<std::string>& overrides) {
  return parse_recipe(kRecipe, "test", overrides);
}

TrainerOptions quiet(const std::string& out) {
  TrainerOptions options;
  options.out = out;
  options.progress = Progress::Style::kSilent;
  options.save = false;
  return options;
}

struct Step {
  double loss, mean_iou;
  bool operator==(const Step&) const = default;
};

std::vector<Step> steps_of(const std::string& run) {
  std::vector<Step> steps;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (const auto record = from_json_line(line); record && record->kind == "step")
      steps.push_back({record->loss.value(), record->mean_iou.value()});
  return steps;
}

TEST(SegmentationRun, ItsIouRises) {
  const TempDir dir;
  const TrainResult result =
      Trainer(Env::posix(),
              recipe_with({"data.source=synth:size=16,count=64,classes=2,difficulty=0,masks=true",
                           "data.eval_source=synth:size=16,count=32,classes=2,difficulty=0,split="
                           "test,masks=true",
                           "augment.rotate=0", "model.name=unet", "model.width=0.125",
                           "train.epochs=15", "train.monitor=eval_iou"}),
              quiet(dir / "run"))
          .run();
  ASSERT_TRUE(result.eval && result.eval->mean_iou());
  EXPECT_GT(*result.eval->mean_iou(), 0.5);
  EXPECT_GT(*result.eval->value("accuracy"), 0.6);
  EXPECT_GE(result.best.best, result.eval->mean_iou());
  const auto steps = steps_of(dir / "run");
  ASSERT_EQ(steps.size(), 120u);
  EXPECT_LT(steps.back().loss, steps.front().loss);
}

const std::vector<std::string> kFrozen = {"optimizer.freeze=[\"encoder.*\"]",
                                          "optimizer.freeze_statistics=true"};

std::vector<std::string> frozen_with(const std::vector<std::string>& more) {
  std::vector<std::string> all = kFrozen;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Delays drawn alike for each test, some long enough that the other side has to wait.
std::function<void(const char*)> delays() {
  auto random = std::make_shared<RandomStream>(5, 0, 0, RandomUse::kAugment);
  auto mutex = std::make_shared<std::mutex>();
  return [random, mutex](const char*) {
    uint64_t micros = 0;
    {
      std::lock_guard lock(*mutex);
      micros = random->below(20) == 0 ? 2000 : random->below(200);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(micros));
  };
}

// Losses of every step and the weights at the end.
TEST(PipelinedRun, EqualsTheSerialOneOverAThousandSteps) {
  const TempDir dir;
  const std::vector<std::string> lengthy = {
      "train.epochs=125", "train.eval_every=25",
      "data.eval_source=synth:size=16,count=8,classes=2,split=test,masks=true"};
  TrainerOptions serial = quiet(dir / "serial"), pipelined = quiet(dir / "pipelined");
  serial.save = pipelined.save = true;
  pipelined.before_stage = delays();
  Trainer(Env::posix(), recipe_with(frozen_with(lengthy)), serial).run();
  auto set = frozen_with(lengthy);
  set.insert(set.end(), {"pipeline.copy=true", "pipeline.encoder=true", "debug.checks=streams"});
  Trainer(Env::posix(), recipe_with(set), pipelined).run();
  const auto expected = steps_of(dir / "serial"), found = steps_of(dir / "pipelined");
  ASSERT_EQ(expected.size(), 1000u);
  ASSERT_EQ(found.size(), 1000u);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << i;
  const auto ignore = [](const std::string&) {};
  const Checkpoint a = find_checkpoint(Env::posix(), dir / "serial", ignore),
                   b = find_checkpoint(Env::posix(), dir / "pipelined", ignore);
  ASSERT_EQ(a.model.size(), b.model.size());
  for (size_t i = 0; i < a.model.size(); ++i)
    EXPECT_TRUE(a.model[i].tensor.equal(b.model[i].tensor)) << a.model[i].name;
}

// With an average of the weights, which replaces them in evaluation; effects; micro-batches.
TEST(PipelinedRun, EqualsTheSerialOneWithAllUsersOfWeights) {
  const TempDir dir;
  const std::vector<std::string> more = {
      "model.name=unet",
      "model.width=0.0625",
      "augment.contrast=0.3",
      "train.ema=0.9",
      "train.accumulate=3",
      "train.eval_every=[\"1 epoch\", \"3 steps\"]",
      "train.epochs=4",
      "data.eval_source=synth:size=16,count=8,classes=2,split=test,masks=true"};
  Trainer(Env::posix(), recipe_with(frozen_with(more)), quiet(dir / "serial")).run();
  TrainerOptions options = quiet(dir / "pipelined");
  options.before_stage = delays();
  auto set = frozen_with(more);
  set.insert(set.end(), {"pipeline.augment=true", "pipeline.encoder=true", "debug.checks=streams"});
  Trainer(Env::posix(), recipe_with(set), options).run();
  EXPECT_EQ(steps_of(dir / "pipelined"), steps_of(dir / "serial"));
}

// The encoder still computes with the model when the trainer is destroyed.
TEST(PipelinedRun, DestroyingTheTrainerEndsTheStagesFirst) {
  const TempDir dir;
  auto set = frozen_with({"pipeline.copy=true", "pipeline.encoder=true", "data.eval_source="});
  std::atomic<int> encoded = 0;
  TrainerOptions options = quiet(dir / "run");
  options.before_stage = [&](const char* stage) {
    if (std::string(stage) != "encode") return;
    ++encoded;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  int steps = 0;
  {
    Trainer trainer(Env::posix(), recipe_with(set), options);
    while (encoded <= steps && trainer.step()) {
      ++steps;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_GT(encoded, steps) << "no batch was ever begun before its step";
  }
}

TEST(PipelinedRun, AResumedOneEqualsTheUninterruptedOne) {
  const TempDir dir;
  auto set = frozen_with({"pipeline.encoder=true", "data.eval_source="});
  TrainerOptions whole = quiet(dir / "whole"), first = quiet(dir / "run");
  whole.save = first.save = true;
  Trainer(Env::posix(), recipe_with(set), whole).run();
  int polls = 0;
  first.should_stop = [&] { return ++polls > 5; };
  Trainer(Env::posix(), recipe_with(set), first).run();
  TrainerOptions second = quiet(dir / "run");
  second.save = true;
  second.resume = dir / "run";
  Trainer(Env::posix(), recipe_with(set), second).run();
  EXPECT_EQ(steps_of(dir / "run"), steps_of(dir / "whole"));
}

TEST(SegmentationRun, UnsupportedSettingsAreRefusedAtOnce) {
  const TempDir dir;
  const auto refused = [&](const std::vector<std::string>& set, const std::string& problem) {
    const Error error =
        error_of([&] { Trainer(Env::posix(), recipe_with(set), quiet(dir / "run")); });
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
  };
  refused({"augment.mixup=0.2"}, "augment.mixup");
  refused({"augment.cutmix=0.2"}, "augment.cutmix");
  refused({"data.cache=device"}, "data.cache");
  refused({"data.stage=tmpfs"}, "data.stage");
  refused({"train.tta=shift:1"}, "train.tta");
  refused({"model.name=mlp"}, "has no output for each pixel");
  refused({"train.task=classify"}, "the source has masks");
  refused({"data.source=synth:size=16"}, "the source has no masks");
  refused({"train.task=classify", "data.source=synth:size=16"}, "predicts a class for each pixel");
  refused({"train.task=classify", "train.monitor=eval_iou"}, "train.monitor");
  refused({"train.task=classify", kFrozen[1], "train.compiled=step.pt2"}, "freeze_statistics");
  refused({"debug.checks=streams"}, "debug.checks");
  refused({"pipeline.encoder=true"}, "optimizer.freeze is empty");
  refused({"pipeline.encoder=true", kFrozen[0]}, "optimizer.freeze_statistics");
  refused({"pipeline.encoder=true", kFrozen[1], "optimizer.freeze=[\"encoder.0.*\"]"},
          "is not frozen");
  refused({"model.weights_match=[\"encoder.*\"]"}, "model.weights_match");
  refused({"data.eval_source=synth:size=16,classes=2"}, "the source has no masks");
}

}  // namespace
}  // namespace saturate
