// The step's settings in whole runs of `saturate train`.
#include <gtest/gtest.h>

#include <map>

#include "run/checkpoint.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class StepSettings : public TrainingTest {};

double rate_at(const std::string& folder, int step) {
  for (const auto& record : read_metrics(folder))
    if (record["kind"] == "step" && record["step"] == step) return record["lr"];
  return -1;
}

// The scaler halves its scale at first, and the schedule drops: both have state to restore.
TEST_F(StepSettings, AResumedRunRestoresScalerAndPlateau) {
  const std::vector<std::string> settings = {
      "train.epochs=4",
      "model.name=mlp",  // fp16 convolutions are slow here
      "precision.mode=fp16",   "precision.loss_scale=[16777216,7]",
      "train.accumulate=3",    "train.clip_norm=1",
      "schedule.name=plateau", "schedule.metric=accuracy",
      "schedule.threshold=1",  "schedule.patience=0",
      "schedule.gamma=0.5"};
  const CommandResult whole = train("whole", settings);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ASSERT_EQ(train("cut", settings).exit_code, 0);
  remove_checkpoints(dir / "cut", {30, 40});
  const CommandResult resumed = run_saturate("train --resume " + (dir / "cut"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_losses(dir / "whole", dir / "cut", "step");
  EXPECT_LT(rate_at(dir / "cut", 40), 0.05) << "this shows nothing otherwise";
  EXPECT_EQ(rate_at(dir / "whole", 40), rate_at(dir / "cut", 40));

  const std::string last = "/checkpoints/step-00000040.safetensors";
  const Checkpoint a = read_checkpoint(Env::posix(), (dir / "whole") + last);
  const Checkpoint b = read_checkpoint(Env::posix(), (dir / "cut") + last);
  ASSERT_EQ(a.scaler.size(), 2u);
  ASSERT_EQ(b.scaler.size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(a.scaler[i].tensor.equal(b.scaler[i].tensor)) << a.scaler[i].name;
  EXPECT_LT(a.scaler[0].tensor.item<float>(), 16777216) << "this shows nothing otherwise";
  ASSERT_EQ(a.schedule.size(), 1u);
  ASSERT_EQ(b.schedule.size(), 1u);
  EXPECT_TRUE(a.schedule[0].tensor.equal(b.schedule[0].tensor));
}

// The recipe for one GPU, unchanged except for its data and size.
TEST_F(StepSettings, TheGpuRecipeStartsOnACpuAndNamesWhatItSkips) {
  std::string arguments =
      "train '" + source_path("recipes/cifar10-speed.toml") + "' --out " + (dir / "speed");
  for (const char* text :
       {"data.source=synth:size=32,count=96", "data.eval_source=synth:size=32,count=32,split=test",
        "train.batch=16", "train.epochs=1", "schedule.warmup_epochs=0.2", "model.width=0.0625",
        "optimizer.lr=0.01", "train.device=cpu", "watch.every=1"})
    arguments += std::string(" --set '") + text + "'";
  const CommandResult result = run_saturate(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses(dir / "speed", "step").size(), 6u);
  EXPECT_NE(result.out.find("train.graph: not used: the run is on a CPU\n"), std::string::npos)
      << result.out;
  EXPECT_NE(result.err.find("train.graph=auto: using eager steps"), std::string::npos)
      << result.err;
}

TEST_F(StepSettings, MicroBatchesWithoutBatchNormTrainLikeTheWholeBatch) {
  const std::vector<std::string> whole = {"model.name=mlp", "train.epochs=1"};
  std::vector<std::string> parts = whole;
  parts.push_back("train.accumulate=3");
  ASSERT_EQ(train("whole", whole).exit_code, 0);
  ASSERT_EQ(train("parts", parts).exit_code, 0);
  const auto expected = losses(dir / "whole", "step"), found = losses(dir / "parts", "step");
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
}

TEST_F(StepSettings, FrozenParametersDoNotChangeAndAreSaved) {
  ASSERT_EQ(
      train("run", {"train.epochs=2", "model.name=mlp", "optimizer.freeze=[\"*.bias\"]"}).exit_code,
      0);
  const auto at = [&](const std::string& step) {
    return read_checkpoint(Env::posix(),
                           dir / ("run/checkpoints/step-000000" + step + ".safetensors"));
  };
  const Checkpoint early = at("10"), late = at("20");
  int frozen = 0;
  for (size_t i = 0; i < early.model.size(); ++i) {
    const bool bias = early.model[i].name.ends_with(".bias");
    frozen += bias;
    EXPECT_EQ(early.model[i].tensor.equal(late.model[i].tensor), bias) << early.model[i].name;
  }
  EXPECT_GT(frozen, 0);
}

TEST_F(StepSettings, EveryOptimizerLearns) {
  for (const std::string name : {"sgd", "adam", "adamw", "lars", "lamb", "rmsprop", "muon"}) {
    const bool layerwise = name == "lars";
    const CommandResult result =
        train(name, {"optimizer.name=" + name, layerwise ? "optimizer.lr=5" : "optimizer.lr=0.01",
                     "train.epochs=3"});
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    const auto found = losses(dir / name, "epoch");
    EXPECT_LT(found.back(), 0.97 * found.front()) << name;
  }
}

TEST_F(StepSettings, GradientCheckpointingChangesOnlyMemory) {
  const std::vector<std::string> plain = {"model.name=resnet9", "model.width=0.25",
                                          "train.epochs=1"};
  std::vector<std::string> segments = plain;
  segments.push_back("train.checkpoint_segments=auto");
  ASSERT_EQ(train("plain", plain).exit_code, 0);
  const CommandResult result = train("segments", segments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_same_losses(dir / "plain", dir / "segments", "step");
  expect_same_losses(dir / "plain", dir / "segments", "eval");
  EXPECT_NE(read_text(dir / "segments/recipe.toml").find("checkpoint_segments = 3\n"),
            std::string::npos);
  const auto peak = [&](const std::string& run) {
    return read_metrics(dir / run).back()["tensor_peak_bytes"]["backward"].get<int64_t>();
  };
  EXPECT_LT(double(peak("segments")), 0.9 * double(peak("plain")));
  EXPECT_NE(result.out.find("tensors, MiB"), std::string::npos) << result.out;
}

TEST_F(StepSettings, EveryRecordHasThePeaksSinceTheLastOne) {
  ASSERT_EQ(train("run", {"train.epochs=1"}).exit_code, 0);
  std::map<std::string, int> seen;
  for (const auto& record : read_metrics(dir / "run")) {
    ++seen[record["kind"]];
    if (record["kind"] == "eval") continue;
    const auto& peaks = record["tensor_peak_bytes"];
    for (const char* phase : {"forward", "backward", "optimizer"})
      EXPECT_GT(peaks[phase].get<int64_t>(), 1 << 16) << record["kind"] << phase;
    EXPECT_EQ(peaks.contains("reduce"), false);
  }
  EXPECT_EQ(seen["step"], 10);
  EXPECT_EQ(seen["epoch"], 1);
  EXPECT_EQ(seen["end"], 1);
}

// With late metrics the record of step 10 is the first with them; otherwise the step itself has
// them.
TEST_F(StepSettings, MetricsAreReadLateOrAtOnce) {
  const std::vector<std::string> late = {"optimizer.lr=1e30", "watch.every=5"};
  std::vector<std::string> at_once = late;
  at_once.push_back("debug.off=late_metrics");
  expect_failed_run(train("late", late), 4, {"not finite by step 5"});
  expect_failed_run(train("at_once", at_once), 4, {"not finite by step 2"});
  ASSERT_EQ(train("a", {"train.epochs=1", "watch.every=3"}).exit_code, 0);
  ASSERT_EQ(train("b", {"train.epochs=1", "watch.every=3", "debug.off=late_metrics"}).exit_code, 0);
  const auto expected = losses(dir / "a", "step"), found = losses(dir / "b", "step");
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

TEST_F(StepSettings, MomentumCyclesInARun) {
  std::vector<std::string> settings = {"schedule.name=onecycle", "train.epochs=2"};
  ASSERT_EQ(train("cycled", settings).exit_code, 0);
  settings.push_back("schedule.cycle_momentum=false");
  ASSERT_EQ(train("fixed", settings).exit_code, 0);
  EXPECT_NE(losses(dir / "cycled", "step"), losses(dir / "fixed", "step"));
}

TEST_F(StepSettings, OutOfMemoryIsOneError) {
  expect_error(train("fixed", {"train.memory_gb=0.0005"}), 4,
               {"out of memory", "train.memory_gb", "train.batch"});
  expect_error(train("auto", {"train.batch=auto", "train.memory_gb=0.0005"}), 4,
               {"even with a single image", "train.memory_gb"});
  EXPECT_FALSE(std::filesystem::exists(dir / "auto/metrics.jsonl"));
}

TEST_F(StepSettings, SettingsThatDoNotFitAreRefusedBeforeTraining) {
  expect_error(train("a", {"optimizer.freeze=[\"stem*\"]"}), 2, {"optimizer.freeze", "stem*"});
  expect_error(train("b", {"schedule.name=step", "schedule.every_epochs=0.01"}), 2,
               {"schedule.every_epochs", "less than a step"});
  expect_error(train("c", {"train.batch=19", "train.accumulate=10", "model.name=resnet18"}), 2,
               {"leave a micro-batch of one image"});
  expect_error(train("d", {"train.compiled=" + (dir / "none.pt2")}), 2,
               {"the compiled step cannot be used", "No such file", dir / "none.pt2",
                "tools/compile_step.py"});
  EXPECT_FALSE(std::filesystem::exists(dir / "d/metrics.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(dir / "a/metrics.jsonl"));
}

TEST_F(StepSettings, PrintingTheRecipeResolvesItAndTrainsNothing) {
  const CommandResult result = train("run", {"train.threads=0", "train.batch=40"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const CommandResult printed = run_saturate(
      "train " + recipe + " --print-recipe --set train.threads=0 --set train.batch=40");
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_EQ(printed.out, read_text(dir / "run/recipe.toml"));
}

}  // namespace
}  // namespace saturate::testing
