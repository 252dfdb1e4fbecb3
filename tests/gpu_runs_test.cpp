// Features of a GPU run beside plain training, each in one short run. They also run on the
// fake CUDA runtime of tests/fake_cuda, which shows that they are not broken themselves.
#include <cmath>
#include <set>

#include "tests/app_testing.h"
#include "tests/gpu_testing.h"

namespace saturate::testing {
namespace {

class GpuRuns : public TrainingTest {
 protected:
  void SetUp() override { SATURATE_NEEDS_GPU(); }
  // A run in fp32 with algorithms that do not change; it must succeed.
  CommandResult run(const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"train.device=cuda", "precision.mode=fp32"});
    const CommandResult result = train(name, overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  void expect_near_losses(const std::string& name, const std::string& other, size_t steps) {
    const auto found = losses(dir / name, "step"), expected = losses(dir / other, "step");
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_GE(found.size(), steps);
    for (size_t i = 0; i < steps; ++i) EXPECT_NEAR(found[i], expected[i], 1e-3) << "step " << i;
  }
};

TEST_F(GpuRuns, AnAutomaticBatchIsFoundAndTrained) {
  const CommandResult result =
      run("run", {"train.batch=auto:100", "data.cache=device", "train.memory_gb=1"});
  EXPECT_NE(result.err.find("train.batch=auto: 100 images per step"), std::string::npos)
      << result.err;
  EXPECT_EQ(losses(dir / "run", "step").size(), 4u);
}

TEST_F(GpuRuns, ATraceHasItsStepsAndStreams) {
  run("run", {"watch.trace=steps:3-5", "pipeline.copy=true"});
  const auto trace = nlohmann::json::parse(read_text(dir / "run/trace.json"));
  std::set<std::string> names;
  for (const auto& event : trace["traceEvents"])
    if (event.contains("name")) names.insert(event["name"].get<std::string>());
  for (const char* expected : {"forward", "backward", "copy"})
    EXPECT_TRUE(names.contains(expected)) << expected;
  EXPECT_FALSE(read_text(dir / "run/trace.txt").empty());
}

TEST_F(GpuRuns, DiagnoseMeasuresWhatAGpuCanChange) {
  const std::string json_path = dir / "found.json";
  const CommandResult result =
      run_saturate("diagnose " + recipe + " --scratch " + (dir / "scratch") +
                   " --set train.device=cuda --seconds 2 --rounds 3 --json " + json_path);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(json_path));
  EXPECT_GT(json["evidence"]["images_per_s"].get<double>(), 0);
  for (const char* change : {"pipeline.augment=", "data.cache=device", "augment.device=cpu"})
    EXPECT_NE(read_text(json_path).find(change), std::string::npos) << change;
}

TEST_F(GpuRuns, AFrozenEncoderAheadOfTheStepGivesTheSerialLosses) {
  const std::vector<std::string> segmenting = {
      "data.source=synth:size=32,count=80,classes=2,masks=true",
      "data.eval_source=",
      "train.task=segment",
      "augment.size=32",
      "augment.crop=none",
      "model.name=unet",
      "model.width=0.0625",
      "optimizer.freeze=[\"encoder.*\"]",
      "optimizer.freeze_statistics=true",
      "train.epochs=1"};
  std::vector<std::string> piped = segmenting;
  piped.insert(piped.end(), {"pipeline.copy=true", "pipeline.augment=true", "pipeline.encoder=true",
                             "debug.checks=streams"});
  run("serial", segmenting);
  run("piped", piped);
  expect_near_losses("piped", "serial", 4);
}

TEST_F(GpuRuns, JpegsDecodedOnTheGpuGiveTheCpusLosses) {
  const std::string shard = "shard:" + (dir / "photos.shard");
  ASSERT_EQ(
      run_saturate("data pack synth:size=160,count=80,difficulty=0.1 --quality 80 --out " + shard)
          .exit_code,
      0);
  const std::vector<std::string> photos = {"data.source=" + shard,
                                           "data.eval_source=" + shard,
                                           "data.decode=fast",
                                           "augment.size=64",
                                           "augment.crop=random_resized",
                                           "augment.rotate=10",
                                           "augment.mixup=0.2",
                                           "train.epochs=1"};
  const std::vector<std::vector<std::string>> cases = {
      {"data.decode_device=cpu"},
      {"data.decode_device=cuda"},
      {"data.decode_device=cuda", "pipeline.copy=false"},
      {"data.decode_device=cuda", "pipeline.augment=true", "debug.checks=streams"},
      {"data.decode_device=cuda", "train.graph=auto", "augment.mixup=0"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> settings = photos;
    settings.insert(settings.end(), cases[i].begin(), cases[i].end());
    const std::string name = std::to_string(i);
    const bool tells = run(name, settings).out.find("the GPU decoded ") != std::string::npos;
    EXPECT_EQ(tells, i > 0);
    EXPECT_EQ(read_metrics(dir / name).back().contains("gpu_decoded"), i > 0);
    if (i > 0 && i + 1 < cases.size()) expect_near_losses(name, "0", 4);
  }
  EXPECT_EQ(losses(dir / "4", "step").size(), 4u);
  EXPECT_EQ(losses(dir / "1", "eval").size(), 1u);
}

TEST_F(GpuRuns, GradientCheckpointingGivesThePlainLosses) {
  const std::vector<std::string> net = {"model.name=resnet18", "model.width=0.125",
                                        "train.epochs=1"};
  std::vector<std::string> segments = net;
  segments.push_back("train.checkpoint_segments=2");
  run("plain", net);
  run("segments", segments);
  expect_near_losses("segments", "plain", 5);
}

TEST_F(GpuRuns, AnAverageFollowsAGraph) {
  const CommandResult result = run("run", {"train.ema=0.9", "train.graph=auto"});
  EXPECT_NE(result.out.find("steps replayed"), std::string::npos) << result.out;
  const auto found = losses(dir / "run", "eval");
  ASSERT_EQ(found.size(), 2u);
  for (const double loss : found) EXPECT_TRUE(std::isfinite(loss)) << loss;
}

TEST_F(GpuRuns, ALimitOfMemoryIsKept) {
  run("enough", {"train.memory_gb=1"});
  const CommandResult result = train("little", {"train.device=cuda", "train.memory_gb=0.001"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_NE(result.err.find("train.memory_gb"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("out of memory"), std::string::npos) << result.err;
}

TEST_F(GpuRuns, AResumedRunFollowsAWholeOne) {
  // A rate that does not depend on the run's length.
  const std::string schedule = "schedule.name=constant";
  run("whole", {"model.name=mlp", schedule});
  run("parted", {"model.name=mlp", schedule, "train.epochs=1"});
  const CommandResult resumed = run_saturate(
      "train " + recipe + " --out " + (dir / "parted") + " --resume " + (dir / "parted") +
      " --set train.device=cuda --set precision.mode=fp32 --set model.name=mlp --set " + schedule);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_near_losses("parted", "whole", 20);
}

}  // namespace
}  // namespace saturate::testing
