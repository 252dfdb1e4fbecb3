// The cause is named if a run cannot start, or its first steps fail.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "run/batch_search.h"
#include "run/checkpoint.h"
#include "saturate/module_model.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/paths.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::quiet_options;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

Error cause_of(const Recipe& recipe, const TempDir& dir) {
  return error_of([&] { Trainer(Env::posix(), recipe, quiet_options(dir / "run")); });
}

std::vector<NamedTensor> causes_weights(const Recipe& recipe) {
  const auto model = make_model(recipe.model, {10, 16, Env::posix()});
  std::vector<NamedTensor> tensors = model_state(*model);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

TEST(Causes, NonFiniteWeightsAreNamedBeforeTheFirstStep) {
  const TempDir dir;
  Recipe recipe = small_recipe();
  recipe.model.weights = dir / "weights.safetensors";
  auto tensors = causes_weights(recipe);
  tensors[1].tensor[0].fill_(std::nan(""));
  write_safetensors(Env::posix(), recipe.model.weights, tensors, {});
  const Error error = cause_of(recipe, dir);
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.reason(), tensors[1].name + " is not finite before the first step");
  EXPECT_EQ(error.where(), recipe.model.weights);
  EXPECT_EQ(error.remedy().find("optimizer.lr"), std::string::npos);
}

TEST(Causes, AnImpossibleDeviationIsNamed) {
  const TempDir dir;
  Recipe recipe = small_recipe();
  recipe.augment.std = {0.2, 1e-300, 0.2};
  EXPECT_EQ(cause_of(recipe, dir).where(), "augment.std");
}

TEST(Causes, ATinyMemoryLimitIsEnforced) {
  const TempDir dir;
  Recipe recipe = small_recipe();
  recipe.train.memory_gb = 1e-10;
  const Error error = cause_of(recipe, dir);
  EXPECT_EQ(error.where(), "train.memory_gb");
  EXPECT_NE(error.reason().find("out of memory"), std::string::npos) << error.what();
}

// BatchNorm over features, and memory for only so many images.
template <int64_t kMost>
class NormedFeatures : public torch::nn::Module {
 public:
  NormedFeatures(int64_t inputs, int64_t classes)
      : fc_(register_module("fc", torch::nn::Linear(inputs, classes))),
        norm_(register_module("norm", torch::nn::BatchNorm1d(classes))) {}
  at::Tensor forward(const at::Tensor& images) {
    TORCH_CHECK_WITH(OutOfMemoryError, images.size(0) <= kMost, "out of memory: a test says so");
    return norm_(fc_(images.flatten(1)));
  }

 private:
  torch::nn::Linear fc_;
  torch::nn::BatchNorm1d norm_;
};

template <int64_t kMost>
std::unique_ptr<Model> make_normed(const ModelOptions&, const ModelInput& input) {
  return make_module_model<NormedFeatures<kMost>>(int64_t(3) * input.size.area(), input.outputs);
}

Recipe automatic_recipe(const std::string& model) {
  [[maybe_unused]] static const bool once = [] {
    add_model("normed_all", "of a test", make_normed<1000>);
    add_model("normed_one", "of a test", make_normed<1>);
    add_model("normed_none", "of a test", make_normed<0>);
    return true;
  }();
  Recipe recipe = small_recipe();
  recipe.model.name = model;
  recipe.train.batch = kAutomatic;
  return recipe;
}

TEST(Causes, AnAutomaticBatchDistinguishesBatchNormFromLackOfMemory) {
  const TempDir dir;
  Recipe recipe = automatic_recipe("normed_all");
  recipe.train.effective_batch = 1;
  Error error = cause_of(recipe, dir);
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "train.effective_batch");
  EXPECT_NE(error.reason().find("BatchNorm"), std::string::npos) << error.what();

  recipe.train.effective_batch = 0;
  recipe.data.source = "synth:size=16,count=1";
  error = cause_of(recipe, dir);
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "data.source");
  EXPECT_EQ(error.reason().find("GiB"), std::string::npos) << error.what();

  error = cause_of(automatic_recipe("normed_one"), dir);
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("two images in memory, and BatchNorm"), std::string::npos)
      << error.what();
  error = cause_of(automatic_recipe("normed_none"), dir);
  EXPECT_NE(error.reason().find("even with a single image"), std::string::npos) << error.what();
}

// As eval and export read it.
TEST(Causes, ACheckpointReturnsItsAverages) {
  const TempDir dir;
  for (const double decay : {0.0, 0.9}) {
    Recipe recipe = small_recipe();
    recipe.train.ema = decay;
    const std::string run = dir / (decay > 0 ? "averaged" : "plain");
    const TrainResult result = Trainer(Env::posix(), recipe, saving_options(run)).run();
    const Checkpoint checkpoint = read_checkpoint(Env::posix(), result.checkpoint);
    const auto model = make_model(recipe.model, {10, 16, Env::posix()});
    const LoadedWeights loaded = load_weights(Env::posix(), result.checkpoint, *model);
    EXPECT_EQ(loaded.averaged, decay > 0);
    EXPECT_TRUE(loaded.fresh.empty());
    std::map<std::string, at::Tensor> expected;
    for (const auto& [name, tensor] : checkpoint.model) expected[name] = tensor;
    for (const auto& [name, tensor] : checkpoint.average) {
      EXPECT_FALSE(at::equal(tensor, expected[name])) << name << ", this shows nothing otherwise";
      expected[name] = tensor;
    }
    for (const auto& [name, tensor] : model_state(*model))
      EXPECT_TRUE(at::equal(tensor.detach(), expected[name])) << name;
  }
}

TEST(Causes, ADamagedArchiveIsReportedInOurOwnWords) {
  const TempDir dir;
  const auto cut = [&](const std::string& golden) {
    const std::string whole = testing::read_text(testing::source_path("tests/goldens/" + golden));
    for (const double share : {0.3, 0.9}) {
      const std::string path = dir / "cut.pt";
      testing::write_file(path, whole.substr(0, size_t(double(whole.size()) * share)));
      Recipe recipe = small_recipe();
      if (golden.ends_with("scripted.pt")) {
        recipe.model.name = "torchscript";
        recipe.model.file = path;
      } else {
        recipe.model.weights = path;
      }
      const Error error = cause_of(recipe, dir);
      EXPECT_NE(error.reason().find("truncated or damaged"), std::string::npos) << error.what();
      EXPECT_EQ(error.where(), path);
      for (const char* word : {"miniz", "PytorchStreamReader", "central directory"})
        EXPECT_EQ(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  cut("weights/simple_cnn.pt");
  cut("weights/scripted.pt");
}

}  // namespace
}  // namespace saturate
