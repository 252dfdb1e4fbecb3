// Whole runs on a GPU, compared with the CPU's.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "reduce/backends.h"
#include "tests/app_testing.h"
#include "tests/compiled_testing.h"
#include "tests/gpu_testing.h"

namespace saturate::testing {
namespace {

class GpuTraining : public TrainingTest {
 protected:
  void SetUp() override { SATURATE_NEEDS_GPU(); }
  // Losses of the steps of a run that must succeed; in fp32 unless `overrides` say otherwise.
  std::vector<double> step_losses(const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "precision.mode=fp32");
    const CommandResult result = train(name, overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    printed = result.out;
    return losses(dir / name, "step");
  }

  std::string printed;  // by the last run of step_losses()
};

TEST_F(GpuTraining, LossesEqualTheCpus) {
  const auto cpu = step_losses("cpu", {"train.device=cpu"});
  const auto gpu = step_losses("gpu", {"train.device=cuda"});
  ASSERT_EQ(cpu.size(), gpu.size());
  // They round differently, and training magnifies the difference: compare the first steps.
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(cpu[i], gpu[i], 1e-3) << "step " << i;
  EXPECT_NEAR(cpu.back(), gpu.back(), 0.1);
}

TEST_F(GpuTraining, TablesAndTokensFollowTheCpu) {
  const std::vector<std::vector<std::string>> cases = {
      {"data.source=synth-table:count=100", "model.name=mlp", "train.task=regress"},
      {"data.source=synth-text:symbols=30,context=16,count=100", "model.name=gpt_tiny"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> settings = cases[i];
    settings.insert(settings.end(), {"data.eval_source=", "augment.size=0", "augment.crop=none",
                                     "optimizer.lr=0.01", "train.device=cpu"});
    const std::string number = std::to_string(i);
    const auto cpu = step_losses("cpu" + number, settings);
    settings.back() = "train.device=cuda";
    const auto gpu = step_losses("gpu" + number, settings);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t s = 0; s < 5; ++s)
      EXPECT_NEAR(gpu.at(s), cpu.at(s), 1e-3) << "case " << i << ", step " << s;
  }
}

// The draws are the same on all.
TEST_F(GpuTraining, VolumesOfTheKernelGiveTheLoadersLosses) {
  write_file(recipe,
             "seed = 3\n[data]\nsource = \"synth-volume:count=48,size=24\"\nthreads = 1\n"
             "[augment]\ncrop = \"random\"\nsize = 16\nrotate = 10\n"
             "contrast = \"gamma:0.3\"\n[model]\nname = \"unet3d\"\nwidth = 0.25\n"
             "[optimizer]\nname = \"adamw\"\nlr = 0.001\n[train]\nbatch = 8\nepochs = 1\n"
             "[watch]\nevery = 1\n");
  const auto cpu = step_losses("cpu", {"train.device=cpu"});
  ASSERT_EQ(cpu.size(), 6u);
  const std::vector<std::vector<std::string>> cases = {
      {"augment.device=cpu"},
      {"augment.device=cuda", "pipeline.copy=false"},
      {"pipeline.augment=true", "debug.checks=streams"},
      {"train.graph=auto"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> settings = cases[i];
    settings.push_back("train.device=cuda");
    const auto gpu = step_losses("gpu" + std::to_string(i), settings);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t s = 0; s < 5; ++s)
      EXPECT_NEAR(gpu[s], cpu[s], 2e-3) << "case " << i << ", step " << s;
  }
  EXPECT_NE(printed.find(" of 6 steps replayed\n"), std::string::npos) << printed;
  EXPECT_EQ(printed.find(" 0 of 6 steps"), std::string::npos) << printed;
}

// Atomic additions are in a different order in each run, so only the first steps are compared.
TEST_F(GpuTraining, ImagesHeldOnTheDeviceGiveTheLoadersLosses) {
  const auto fed = step_losses("fed", {"train.device=cuda"});
  const auto held = step_losses("held", {"train.device=cuda", "data.cache=device"});
  ASSERT_EQ(held.size(), fed.size());
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(held[i], fed[i], 1e-3) << "step " << i;
}

TEST_F(GpuTraining, APipelineGivesTheSerialLosses) {
  const auto serial = step_losses("serial", {"train.device=cuda", "pipeline.copy=false"});
  const auto piped = step_losses("piped", {"train.device=cuda", "pipeline.copy=true",
                                           "pipeline.augment=true", "debug.checks=streams"});
  ASSERT_EQ(piped.size(), serial.size());
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(piped[i], serial[i], 1e-3) << "step " << i;
}

// With a graph the rate is a float on the device; otherwise it is rounded from a double.
TEST_F(GpuTraining, AGraphGivesTheEagerLosses) {
  const std::vector<std::vector<std::string>> cases = {
      {"train.device=cuda"},
      {"train.device=cuda", "data.cache=device", "augment.rotate=20", "train.accumulate=2",
       "train.clip_norm=1"},
      {"train.device=cuda", "optimizer.name=adamw", "optimizer.lr=0.003", "pipeline.copy=true"},
      {"train.device=cuda", "model.name=mobilenet_v2", "model.width=0.25", "precision.mode=fp16",
       "optimizer.lr=0.003"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> settings = {"precision.mode=fp32"};
    settings.insert(settings.end(), cases[i].begin(), cases[i].end());
    const auto plain = step_losses("plain" + std::to_string(i), settings);
    settings.push_back("train.graph=auto");
    const CommandResult result = train("graph" + std::to_string(i), settings);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("steps replayed\n"), std::string::npos) << result.out;
    const auto graphed = losses(dir / ("graph" + std::to_string(i)), "step");
    ASSERT_EQ(graphed.size(), plain.size());
    for (size_t s = 0; s < 6; ++s)
      EXPECT_NEAR(graphed[s], plain[s], i == 3 ? 0.1 : 5e-3) << "case " << i << ", step " << s;
    if (i < 3) {  // too few steps for the last net
      EXPECT_LT(graphed.back(), graphed.front());
    }
  }
}

TEST_F(GpuTraining, AStepThatReadsNumbersOnTheHostIsNotCapturedAndTheRunContinues) {
  const CommandResult result =
      train("run", {"train.device=cuda", "train.graph=auto", "debug.checks=anomaly"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("train.graph: not used: debug.checks has anomaly"), std::string::npos)
      << result.out;
}

TEST_F(GpuTraining, TheFirstLossDoesNotDependOnLoaderThreads) {
  const auto one = step_losses("one", {"train.device=cuda", "data.threads=1"});
  const auto four = step_losses("four", {"train.device=cuda", "data.threads=4"});
  EXPECT_NEAR(one.at(0), four.at(0), 1e-5);
}

// Without fp32 weights, SGD's small updates are lost and gradients overflow at the usual scale.
TEST_F(GpuTraining, EveryPrecisionLearns) {
  for (const std::string mode : {"fp32", "tf32", "bf16", "fp16", "bf16-o2", "fp16-o2", "fp16-o3"}) {
    std::vector<std::string> settings = {"train.device=cuda", "precision.mode=" + mode,
                                         "train.epochs=8"};
    if (mode == "fp16-o3")
      settings.insert(settings.end(), {"optimizer.name=adamw", "optimizer.eps=1e-3",
                                       "optimizer.lr=0.003", "precision.loss_scale=128"});
    const auto found = step_losses(mode, settings);
    ASSERT_FALSE(found.empty()) << mode;
    EXPECT_LT(found.back(), found.front() * 0.8) << mode;
  }
}

TEST_F(GpuTraining, TheDefaultPrecisionIsBf16) {
  const CommandResult result = train("run", {"train.device=cuda", "train.epochs=1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("precision bf16"), std::string::npos) << result.err;
}

TEST_F(GpuTraining, EveryOptimizerLearns) {
  for (const char* name : {"sgd", "adam", "adamw", "lamb", "lars", "rmsprop", "muon"}) {
    const bool adaptive = std::string(name) != "sgd" && std::string(name) != "lars";
    const auto found =
        step_losses(name, {"train.device=cuda", std::string("optimizer.name=") + name,
                           adaptive ? "optimizer.lr=0.003" : "optimizer.lr=0.05",
                           "optimizer.trust=0.05", "train.clip_norm=5"});
    ASSERT_FALSE(found.empty()) << name;
    EXPECT_LT(found.back(), found.front()) << name;
  }
}

// Each rank has half of a step's images.
TEST_F(GpuTraining, TwoProcessesLearnLikeOne) {
  const auto one = step_losses("one", {"train.device=cuda", "model.name=mlp"});
  const CommandResult result =
      run_saturate("launch --nproc-per-node 2 -- train " + recipe + " --out " + (dir / "two") +
                       " --set train.device=cuda --set model.name=mlp --set precision.mode=fp32" +
                       // NCCL does not allow two ranks on one GPU.
                       (gpu_count() < 2 ? " --set distributed.backend=gloo" : ""),
                   gpu_count() < 2 ? "CUDA_VISIBLE_DEVICES=0" : "");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto two = losses(dir / "two", "step");
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(two[i], one[i], 1e-3) << "step " << i;
}

TEST_F(GpuTraining, NcclAllReduces) {
  if (!has_nccl()) GTEST_SKIP() << "this build has no NCCL";
  const at::Device device(at::kCUDA, 0);
  World alone;
  alone.rank = 0;
  alone.size = 1;
  const auto backend =
      make_nccl(c10::make_intrusive<c10d::HashStore>(), alone, std::chrono::seconds(30), device);
  const at::Tensor values = at::arange(1000, at::TensorOptions(device).dtype(at::kFloat));
  std::vector<at::Tensor> summed = {values.clone()};
  backend->allreduce(summed)->wait();
  EXPECT_TRUE(summed[0].equal(values));
  backend->shutdown();
}

// A CPU's and a GPU's packages differ only in their code: step_compiled_test.cpp tests the rest.
TEST_F(GpuTraining, ACompiledStepGivesTheEagerLosses) {
  if (compiling_python().empty()) GTEST_SKIP() << kNoPython;
  if (std::system("(command -v c++ || command -v g++) >/dev/null 2>&1") != 0 ||
      std::system("(test -x /usr/local/cuda/bin/nvcc || command -v nvcc) >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "compiling a step for a GPU needs g++ and the CUDA toolkit";
  const std::vector<std::string> settings = {"train.device=cuda", "precision.mode=fp32"};
  const std::string package =
      compile_package(dir, parse_recipe(read_text(recipe), recipe, settings));
  const auto plain = step_losses("plain", settings);
  const auto compiled = step_losses("compiled", {"train.device=cuda", "train.compiled=" + package});
  ASSERT_EQ(compiled.size(), plain.size());
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(compiled[i], plain[i], 1e-3) << "step " << i;
}

TEST_F(GpuTraining, ACheckpointResumesOnTheCpu) {
  step_losses("run", {"train.device=cuda", "train.epochs=1"});
  const CommandResult resumed =
      run_saturate("train " + recipe + " --set train.device=cpu --set train.epochs=2 --resume " +
                   (dir / "run") + " --out " + (dir / "run"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const CommandResult evaluated =
      run_saturate("eval " + (dir / "run") + " --data '" + kSmallSynthTest + "'");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
}

}  // namespace
}  // namespace saturate::testing
