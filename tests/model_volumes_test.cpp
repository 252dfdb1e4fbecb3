// unet3d and resnet18_1d against the same models in Python (tests/oracles/volume_model_goldens.py).
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/export_model.h"
#include "saturate/data/error.h"
#include "saturate/feed.h"
#include "saturate/gradient_checkpoint.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::fill_all;
using testing::symmetric;

constexpr int kVoxelClasses = 3;

std::unique_ptr<Model> make_for(const std::string& name, const std::vector<int64_t>& shape) {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  at::manual_seed(0);
  ModelInput input{kVoxelClasses, 0, Env::posix()};
  input.tensor = {"x", ElementType::kFloat32, shape};
  return make_model(options, input);
}

class TensorTwin : public ::testing::TestWithParam<std::string> {
 protected:
  template <class Check>
  void for_cases(const Check& check) {
    std::ifstream file(testing::source_path("tests/goldens/model/volumes.json"));
    for (const json& golden : json::parse(file)[GetParam()]) {
      const std::vector<int64_t> shape = golden["shape"];
      SCOPED_TRACE(GetParam() + " of " + golden["shape"].dump());
      const auto model = make_for(GetParam(), shape);
      std::vector<int64_t> batch = shape;
      batch.insert(batch.begin(), 2);
      check(*model, symmetric("input", batch, 2), golden);
    }
  }
};

TEST_P(TensorTwin, NamesAndFirstWeightsAreEqual) {
  for_cases([](Model& model, const at::Tensor&, const json& golden) {
    std::map<std::string, std::vector<int64_t>> found;
    for (const auto& list : {model.parameters(), model.buffers()})
      for (const auto& [name, tensor] : list) found[name] = tensor.sizes().vec();
    EXPECT_EQ(found.size(), golden["state_dict"].size());
    for (const auto& row : golden["state_dict"])
      EXPECT_EQ(found[row[0]], row[1].get<std::vector<int64_t>>()) << row[0];
    testing::expect_first_weights(model, golden["initial"]);
  });
}

TEST_P(TensorTwin, LogitsAreEqual) {
  for_cases([](Model& model, const at::Tensor& input, const json& golden) {
    const at::NoGradGuard no_grad;
    fill_all(model);
    model.set_training(false);
    const at::Tensor logits = model.forward(input);
    EXPECT_EQ(logits.sizes().vec(), golden["logits_shape"].get<std::vector<int64_t>>());
    const at::Tensor flat = logits.contiguous().flatten();
    const std::vector<float> expected = golden["logits"];
    double scale = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      scale = std::max(scale, std::abs(double(expected[i])));
      worst = std::max(worst, std::abs(flat[int64_t(i)].item<double>() - double(expected[i])));
    }
    EXPECT_GT(scale, 0.05);
    EXPECT_LT(worst, 1e-5 * scale);
  });
}

TEST_P(TensorTwin, GradientsAndStatisticsAreEqual) {
  for_cases([](Model& model, const at::Tensor& input, const json& golden) {
    fill_all(model);
    for (const auto& list : {model.parameters(), model.buffers()})
      for (const auto& [name, tensor] : list)
        if (tensor.is_floating_point()) tensor.set_data(tensor.to(at::kDouble));
    model.set_training(true);
    const at::Tensor logits = model.forward(input.to(at::kDouble));
    const at::Tensor like = logits.select(1, 0);
    const at::Tensor labels =
        at::arange(like.numel()).remainder(kVoxelClasses).reshape(like.sizes()).clone();
    if (labels.dim() > 1) labels.select(1, 1).fill_(kIgnoredLabel);
    const at::Tensor loss = at::cross_entropy_loss(logits, labels);
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), golden["loss"].get<double>(), 1e-6);
    for (const auto& [name, tensor] : model.parameters()) {
      const double norm = golden["gradients"][name];
      EXPECT_NEAR(tensor.grad().norm().item<double>(), norm, 1e-6 * norm + 1e-12) << name;
    }
    for (const auto& [name, tensor] : model.buffers()) {
      const double norm = golden["buffers"][name];
      EXPECT_NEAR(tensor.to(at::kDouble).norm().item<double>(), norm, 1e-6 * norm) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Model, TensorTwin, ::testing::Values("unet3d", "resnet18_1d"),
                         [](const auto& tested) { return tested.param; });

TEST(TensorModels, FacetsAreThoseOfTheirKind) {
  const auto volumes = make_for("unet3d", {8, 8, 8}), signals = make_for("resnet18_1d", {64});
  EXPECT_TRUE(volumes->facets().per_pixel);
  EXPECT_FALSE(signals->facets().per_pixel);
  ASSERT_EQ(signals->facets().stages.size(), 10u);
  signals->set_training(false);
  const at::Tensor input = at::randn({3, 64});
  EXPECT_TRUE(at::equal(checkpoint_sequential(signals->facets().stages, 3, input),
                        signals->forward(input)));
  volumes->set_training(false);
  const at::Tensor cube = at::randn({2, 8, 8, 8});
  const auto encoder = volumes->facets().encoder;
  ASSERT_TRUE(encoder);
  EXPECT_TRUE(at::equal(encoder->decode(encoder->encode(cube)), volumes->forward(cube)));
}

TEST(TensorModels, TheirProgramsTakeAnyNumberOfSamples) {
  const testing::TempDir dir;
  for (const auto& [name, shape] : {std::pair("unet3d", std::vector<int64_t>{8, 16, 8}),
                                    std::pair("resnet18_1d", std::vector<int64_t>{64})}) {
    const at::NoGradGuard no_grad;
    const auto model = make_for(name, shape);
    ModelInput input{kVoxelClasses, 0, Env::posix()};
    input.tensor = {"x", ElementType::kFloat32, shape};
    export_torchscript(Env::posix(), dir / "x.pt", *model, input);
    torch::jit::Module program = torch::jit::load(dir / "x.pt");
    for (const int64_t count : {1, 2, 5}) {
      const at::Tensor samples = at::randn(input.batch_shape(count));
      EXPECT_TRUE(
          at::allclose(program.forward({samples}).toTensor(), model->forward(samples), 1e-4, 1e-5))
          << name << " of " << count;
    }
  }
}

TEST(TensorModels, OtherShapesAreRefused) {
  const auto reason = [](const std::string& name, const std::vector<int64_t>& shape) {
    try {
      make_for(name, shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.reason();
    }
    return std::string();
  };
  EXPECT_EQ(reason("unet3d", {8, 12, 8}).substr(0, 20), "unet3d needs volumes");
  EXPECT_EQ(reason("unet3d", {8, 8}).substr(0, 20), "unet3d needs volumes");
  EXPECT_EQ(reason("resnet18_1d", {8, 8, 8}).substr(0, 25), "resnet18_1d needs signals");
  EXPECT_EQ(reason("unet3d", {1, 16, 8, 24}), "");
}

}  // namespace
}  // namespace saturate
