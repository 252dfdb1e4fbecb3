// Helpers of the tests of the compiled step: packages written by hand, and by
// tools/compile_step.py.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "saturate/data/recipe.h"
#include "saturate/feed.h"
#include "saturate/model.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate::testing {

// A resolved recipe, for images of 16 pixels in ten classes.
inline Recipe package_recipe(const std::string& model) {
  Recipe recipe;
  recipe.data.source = "synth:size=16,count=64";
  recipe.model.name = model;
  recipe.model.classes = 10;
  recipe.augment.size = 16;
  recipe.train.batch = 8;
  recipe.train.task = TaskKind::kClassify;
  recipe.train.label_smoothing = 0.1;
  recipe.train.device = "cpu";
  recipe.precision.mode = PrecisionMode::kFp32;
  recipe.train.threads = 1;
  return recipe;
}

// The recipe's model, with the same values each time.
inline std::unique_ptr<Model> compiled_model(const Recipe& recipe) {
  at::manual_seed(3);
  auto model = make_model(recipe.model, {recipe.model.classes, recipe.augment.size, Env::posix()});
  model->to(at::kCPU, recipe.train.channels_last);
  return model;
}

inline DeviceBatch random_batch(const Recipe& recipe, int64_t count) {
  DeviceBatch batch;
  const ImageSize& size = recipe.augment.size;
  batch.images =
      at::randn({count, 3, size.height, size.width}).contiguous(at::MemoryFormat::ChannelsLast);
  if (recipe.train.task == TaskKind::kSegment) {  // some without a label
    batch.labels = at::randint(recipe.model.classes, {count, size.height, size.width}, at::kLong);
    batch.labels.narrow(0, 0, count / 4).fill_(kIgnoredLabel);
    return batch;
  }
  batch.labels = at::randint(recipe.model.classes, {count}, at::kLong);
  return batch;
}

inline nlohmann::json listed(const std::vector<NamedTensor>& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    list.push_back({{"name", name},
                    {"shape", tensor.sizes().vec()},
                    {"strides", tensor.strides().vec()},
                    {"type", toString(tensor.scalar_type())}});
  return list;
}

// The facts that tools/compile_step.py writes about a package for this recipe and model.
inline nlohmann::json describe_package(const Recipe& recipe, Model& model,
                                       const std::string& library) {
  nlohmann::json gradients = nlohmann::json::array();
  for (const auto& [name, tensor] : model.parameters()) gradients.push_back(name);
  return {{"format", 2},
          {"torch", TORCH_VERSION},
          {"processor", nlohmann::json::array()},
          {"part", recipe.train.batch / recipe.train.accumulate},
          {"settings",
           {{"model.name", recipe.model.name},
            {"model.classes", recipe.model.classes},
            {"augment.size", recipe.augment.size.width},
            {"precision.mode", "fp32"},
            {"train.label_smoothing", recipe.train.label_smoothing},
            {"train.channels_last", recipe.train.channels_last}}},
          {"parameters", listed(model.parameters())},
          {"buffers", listed(model.buffers())},
          {"gradients", gradients},
          {"checksum", checksum_of(std::as_bytes(std::span(library)))}};
}

inline void write_package(const std::string& path, const nlohmann::json& about,
                          const std::string& library) {
  caffe2::serialize::PyTorchStreamWriter archive(path);
  const std::string text = about.dump();
  archive.writeRecord("data/aotinductor/model/step.so", library.data(), library.size());
  archive.writeRecord("extra/saturate.json", text.data(), text.size());
  archive.writeEndOfFile();
}

// A Python that can compile: $SATURATE_PYTHON, or python3; empty if it lacks the required torch.
inline const std::string& compiling_python() {
  static const std::string found = [] {
    const char* given = std::getenv("SATURATE_PYTHON");
    const std::string python = given ? given : "python3";
    const std::string check = "'" + python +
                              "' -c 'import torch; assert torch.__version__.split(\"+\")[0] == \"" +
                              TORCH_VERSION "\"' >/dev/null 2>&1";
    return std::system(check.c_str()) == 0 ? python : std::string();
  }();
  return found;
}

inline const char* kNoPython =
    "no Python with torch " TORCH_VERSION ": set SATURATE_PYTHON to one to run this";

// Runs tools/compile_step.py; returns the package's path, which the command was given.
inline std::string compile_package(const TempDir& dir, const std::string& recipe,
                                   const std::vector<std::string>& settings,
                                   const std::string& more = "") {
  const std::string path = dir / "step.pt2", log = dir / "compile.log";
  std::string command = "'" + compiling_python() + "' '" + source_path("tools/compile_step.py") +
                        "' '" + recipe + "' --saturate '" + kCommand + "' --out '" + path + "' " +
                        more;
  for (const std::string& setting : settings) command += " --set '" + setting + "'";
  EXPECT_EQ(std::system((command + " >'" + log + "' 2>&1").c_str()), 0) << read_text(log);
  return path;
}

inline std::string compile_package(const TempDir& dir, const Recipe& recipe,
                                   const std::string& more = "") {
  write_file(dir / "recipe.toml", to_toml(recipe));
  return compile_package(dir, dir / "recipe.toml", {}, more);
}

// Options for tests that compile a step: one compute thread, as in the recipe above.
class CompilingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compiling_python().empty()) GTEST_SKIP() << kNoPython;
    at::set_num_threads(1);
  }
  TempDir dir;
};

}  // namespace saturate::testing
