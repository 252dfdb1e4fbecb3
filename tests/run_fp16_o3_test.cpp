// Runs with weights, statistics and optimizer state in fp16, and the defaults on a GPU.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "run/setup.h"
#include "tests/app_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::losses;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

Recipe all_half_recipe() {
  Recipe recipe =
      small_recipe("[checkpoint]\nevery = \"4 steps\"\n[debug]\noff = [\"background\"]\n");
  recipe.model.name = "resnet9";  // has BatchNorm
  recipe.model.width = 0.125;
  recipe.train.channels_last = true;
  recipe.precision.mode = PrecisionMode::kFp16O3;
  recipe.precision.initial_scale = 128;
  recipe.optimizer.lr = 0.05;
  recipe.watch.every = 1;
  return recipe;
}

Checkpoint run_to_checkpoint(const Recipe& recipe, const TrainerOptions& options) {
  const TrainResult result = Trainer(Env::posix(), recipe, options).run();
  return read_checkpoint(Env::posix(), result.checkpoint);
}

TEST(Fp16O3, KeepsAllStateInFp16AndLearns) {
  const TempDir dir;
  for (const char* optimizer : {"sgd", "adamw"}) {
    Recipe recipe = all_half_recipe();
    recipe.optimizer.name = optimizer;
    recipe.data.source = "synth:size=16,count=25";
    recipe.train.epochs = 20;
    if (recipe.optimizer.name == "adamw") {
      recipe.optimizer.lr = 0.003;
      recipe.optimizer.eps = 1e-3;  // squares of small gradients are 0 in fp16
    }
    const std::string out = dir / optimizer;
    const Checkpoint saved = run_to_checkpoint(recipe, saving_options(out));
    int checked = 0;
    for (const auto* tensors : {&saved.model, &saved.optimizer})
      for (const auto& [name, tensor] : *tensors)
        if (tensor.is_floating_point() && tensor.dim() > 0) {
          EXPECT_EQ(tensor.scalar_type(), at::kHalf) << name;
          ++checked;
        }
    EXPECT_GT(checked, 30);
    const auto found = losses(out, "step");
    ASSERT_EQ(found.size(), 20u);
    // Plain SGD's steps are so much smaller than the weights that fp16 rounds most of them away.
    if (recipe.optimizer.name == "adamw") {
      EXPECT_LT(found.back(), found.front() * 0.95);
    }
  }
}

TEST(Fp16O3, AResumedRunContinuesBitEqually) {
  const TempDir dir;
  const Recipe recipe = all_half_recipe();
  const Checkpoint straight = run_to_checkpoint(recipe, saving_options(dir / "straight"));
  TrainerOptions options = saving_options(dir / "resumed");
  options.resume = dir / "straight/checkpoints/step-00000004.safetensors";
  const Checkpoint resumed = run_to_checkpoint(recipe, options);
  ASSERT_EQ(resumed.model.size(), straight.model.size());
  for (size_t i = 0; i < straight.model.size(); ++i)
    EXPECT_TRUE(at::equal(resumed.model[i].tensor, straight.model[i].tensor))
        << straight.model[i].name;
}

TEST(Fp16O3, WarnsThatItIsForComparison) {
  const TempDir dir;
  for (const auto mode : {PrecisionMode::kFp16O3, PrecisionMode::kFp16O2}) {
    Recipe recipe = all_half_recipe();
    recipe.precision.mode = mode;
    ::testing::internal::CaptureStderr();
    Trainer(Env::posix(), recipe, testing::quiet_options(dir / std::to_string(int(mode))));
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(text.find("saturate: warning: precision.mode=fp16-o3 is for comparison") !=
                  std::string::npos,
              mode == PrecisionMode::kFp16O3)
        << text;
  }
}

TEST(MachineDefaults, OnAGpuAreBf16AndACopyStream) {
  const at::Device gpu(at::kCUDA, 0);
  Recipe recipe = small_recipe();
  resolve_machine(recipe, gpu);
  EXPECT_EQ(recipe.precision.mode, PrecisionMode::kBf16);
  EXPECT_TRUE(recipe.precision.tf32) << "what stays in fp32";
  EXPECT_EQ(recipe.pipeline.copy, Toggle::kOn);
  EXPECT_EQ(recipe.train.device, "cuda");
  Recipe exact = small_recipe("[precision]\nmode = \"fp32\"\n[pipeline]\ncopy = false\n");
  resolve_machine(exact, gpu);
  EXPECT_EQ(exact.precision.mode, PrecisionMode::kFp32);
  EXPECT_EQ(exact.pipeline.copy, Toggle::kOff);
}

TEST(MachineDefaults, OnACpuAreFp32AndNoStream) {
  Recipe recipe = small_recipe();
  resolve_machine(recipe, at::kCPU);
  EXPECT_EQ(recipe.precision.mode, PrecisionMode::kFp32);
  EXPECT_EQ(recipe.pipeline.copy, Toggle::kOff);
}

}  // namespace
}  // namespace saturate
