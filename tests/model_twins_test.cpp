// Models compared with torchvision's, or with the same models made of its parts
// (tests/oracles/model_goldens.py).
#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/formula.h"
#include "tests/paths.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::fill_all;
using testing::symmetric;

constexpr int kClasses = 100;

std::unique_ptr<Model> make_twin(const std::string& name, int size) {
  ModelOptions options;
  options.name = name;
  options.dropout = 0;
  at::manual_seed(0);
  return make_model(options, {kClasses, size, Env::posix()});
}

class Twin : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream file(testing::source_path("tests/goldens/model/" + GetParam() + ".json"));
    golden_ = json::parse(file);
    size_ = GetParam() == "toy_cnn" ? 16 : GetParam() == "vit_b_16" ? 224 : 64;
    model_ = make_twin(GetParam(), size_);
  }

  json golden_;
  int size_ = 0;
  std::unique_ptr<Model> model_;
};

// state_dict() mixes parameters and buffers; within each kind the order is equal.
TEST_P(Twin, NamesAndShapesAreEqual) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> buffers, parameters;
  for (const auto& row : golden_["state_dict"]) {
    const std::string name = row[0];
    const bool buffer = name.find("running_") != std::string::npos || name.ends_with("_tracked") ||
                        name == "stem_weight";
    (buffer ? buffers : parameters).emplace_back(name, row[1]);
  }
  const auto compare = [](const auto& expected, const std::vector<NamedTensor>& actual) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].name, expected[i].first);
      EXPECT_EQ(actual[i].tensor.sizes().vec(), expected[i].second) << actual[i].name;
    }
  };
  compare(parameters, model_->parameters());
  compare(buffers, model_->buffers());
}

// Models whose Python version initialises its weights alike.
class DrawnTwin : public Twin {};

TEST_P(DrawnTwin, SameSeedGivesTheSameWeights) {
  testing::expect_first_weights(*model_, golden_["initial"]);
}

TEST_P(Twin, LogitsAreEqual) {
  const at::NoGradGuard no_grad;
  for (const auto& [text, golden] : golden_["logits"].items()) {
    const auto rows = golden.get<std::vector<std::vector<float>>>();
    const int size = std::stoi(text);
    if (size != size_) model_ = make_twin(GetParam(), size);
    fill_all(*model_);
    model_->set_training(false);
    const at::Tensor images = symmetric("input", {int64_t(rows.size()), 3, size, size}, 2);
    for (const bool channels_last : {false, true}) {
      model_->to(at::kCPU, channels_last);
      const at::Tensor logits = model_->forward(images);
      double scale = 0, worst = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        for (size_t j = 0; j < rows[i].size(); ++j) {
          const double value = logits[int64_t(i)][int64_t(j)].item<double>();
          scale = std::max(scale, std::abs(double(rows[i][j])));
          worst = std::max(worst, std::abs(value - rows[i][j]));
        }
      }
      EXPECT_GT(scale, 0.1) << size;
      EXPECT_LT(worst, 1e-5 * scale) << size;
    }
    size_ = size;
  }
}

// In double: float rounding changes the gradients of deep networks by per cents of their norm,
// differently on each processor.
class TrainedTwin : public Twin {
 protected:
  void SetUp() override {
    Twin::SetUp();
    fill_all(*model_);
    for (const auto& list : {model_->parameters(), model_->buffers()})
      for (const auto& [name, tensor] : list)
        if (tensor.is_floating_point()) tensor.set_data(tensor.to(at::kDouble));
  }
};

TEST_P(TrainedTwin, GradientsAreEqual) {
  model_->set_training(true);
  const at::Tensor images = symmetric("input", {8, 3, size_, size_}, 2).to(at::kDouble);
  const at::Tensor logits = model_->forward(images);
  const at::Tensor loss = at::cross_entropy_loss(logits, at::arange(0, 56, 7));
  loss.backward();
  const auto& golden = golden_["training"];
  constexpr double kClose = 1e-6;
  EXPECT_NEAR(loss.item<double>(), golden["loss"].get<double>(), kClose);
  for (const auto& [name, tensor] : model_->parameters()) {
    ASSERT_EQ(tensor.requires_grad(), golden["gradients"].contains(name)) << name;
    if (!tensor.requires_grad()) continue;
    const double norm = golden["gradients"][name][0];
    EXPECT_NEAR(tensor.grad().norm().item<double>(), norm, kClose * norm) << name;
    const double product =
        tensor.grad().mul(symmetric("probe:" + name, tensor.sizes(), 1)).sum().item<double>();
    EXPECT_NEAR(product, golden["gradients"][name][1].get<double>(), kClose * norm) << name;
  }
  for (const auto& [name, tensor] : model_->buffers()) {
    const double norm = golden["buffers"][name];
    EXPECT_NEAR(tensor.to(at::kDouble).norm().item<double>(), norm, kClose * norm) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Model, Twin,
                         ::testing::Values("resnet18", "resnet18_cifar", "resnet34", "resnet50",
                                           "se_resnet18", "mobilenet_v2", "vit_tiny", "vit_b_16",
                                           "toy_cnn", "mlp", "simple_cnn", "resnet9", "airbench"),
                         [](const auto& tested) { return tested.param; });

INSTANTIATE_TEST_SUITE_P(Model, DrawnTwin,
                         ::testing::Values("resnet18", "resnet18_cifar", "resnet34", "resnet50",
                                           "se_resnet18", "mobilenet_v2", "vit_tiny", "vit_b_16",
                                           "toy_cnn", "mlp", "simple_cnn"),
                         [](const auto& tested) { return tested.param; });

INSTANTIATE_TEST_SUITE_P(Model, TrainedTwin,
                         ::testing::Values("resnet18", "resnet18_cifar", "se_resnet18", "vit_tiny",
                                           "toy_cnn", "mlp", "simple_cnn", "resnet9", "airbench"),
                         [](const auto& tested) { return tested.param; });

TEST(Transformer, ExplicitAttentionEqualsFusedAttention) {
  const at::Tensor images = symmetric("input", {2, 3, 32, 32}, 2);
  ModelOptions options;
  options.name = "vit_tiny";
  const auto fused = make_model(options, {10, 32, Env::posix()});
  options.attention = Attention::kNaive;
  const auto naive = make_model(options, {10, 32, Env::posix()});
  for (Model* model : {fused.get(), naive.get()}) {
    fill_all(*model);
    at::cross_entropy_loss(model->forward(images), at::arange(2)).backward();
  }
  const auto expected = fused->parameters(), found = naive->parameters();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i].tensor.grad(), expected[i].tensor.grad(), 1e-3, 1e-5))
        << found[i].name;
}

TEST(MobileNet, HasDropoutOnlyInTraining) {
  const at::NoGradGuard no_grad;
  ModelOptions options;
  options.name = "mobilenet_v2";
  options.width = 0.25;
  options.dropout = 0.5;
  const auto model = make_model(options, {10, 32, Env::posix()});
  const at::Tensor images = symmetric("input", {2, 3, 32, 32}, 2);
  model->set_training(true);
  EXPECT_FALSE(at::equal(model->forward(images), model->forward(images)));
  model->set_training(false);
  EXPECT_TRUE(at::equal(model->forward(images), model->forward(images)));
}

}  // namespace
}  // namespace saturate
