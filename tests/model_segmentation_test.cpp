// unet and toy_seg against the same models in Python (tests/oracles/segmentation_goldens.py).
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "saturate/feed.h"
#include "saturate/module_model.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/app_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::fill_all;
using testing::symmetric;

constexpr int kMaskClasses = 3, kSize = 16;

std::unique_ptr<Model> make_segmenter(const std::string& name, int size = kSize) {
  ModelOptions options;
  options.name = name;
  options.width = 0.125;
  at::manual_seed(0);
  return make_model(options, {kMaskClasses, size, Env::posix()});
}

// labels() of the oracle.
at::Tensor labels(int64_t count, int64_t classes, int64_t size) {
  const auto n = at::arange(count).view({count, 1, 1}), y = at::arange(size).view({1, size, 1}),
             x = at::arange(size).view({1, 1, size});
  at::Tensor found = (x + 2 * y + n).remainder(classes);
  found.select(2, 3).fill_(kIgnoredLabel);
  found.select(1, 5).fill_(kIgnoredLabel);
  return found;
}

class SegmentationTwin : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream file(testing::source_path("tests/goldens/segmentation/models.json"));
    golden_ = json::parse(file)[GetParam()];
    model_ = make_segmenter(GetParam());
  }
  json golden_;
  std::unique_ptr<Model> model_;
};

TEST_P(SegmentationTwin, NamesShapesAndFirstWeightsAreEqual) {
  std::map<std::string, std::vector<int64_t>> found;
  for (const auto& list : {model_->parameters(), model_->buffers()})
    for (const auto& [name, tensor] : list) found[name] = tensor.sizes().vec();
  EXPECT_EQ(found.size(), golden_["state_dict"].size());
  for (const auto& row : golden_["state_dict"]) EXPECT_EQ(found[row[0]], row[1]) << row[0];
  testing::expect_first_weights(*model_, golden_["initial"]);
}

TEST_P(SegmentationTwin, LogitsOfEachPixelAreEqual) {
  const at::NoGradGuard no_grad;
  fill_all(*model_);
  model_->set_training(false);
  const at::Tensor images = symmetric("input", {2, 3, kSize, kSize}, 2);
  const auto expected = golden_["logits"].get<std::vector<double>>();
  EXPECT_TRUE(model_->facets().per_pixel);
  for (const bool channels_last : {false, true}) {
    model_->to(at::kCPU, channels_last);
    const at::Tensor logits = model_->forward(images);
    ASSERT_EQ(logits.sizes(), (at::IntArrayRef{2, kMaskClasses, kSize, kSize}));
    const at::Tensor flat = logits.contiguous().flatten();
    ASSERT_EQ(size_t(flat.size(0)), expected.size());
    double scale = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      scale = std::max(scale, std::abs(expected[i]));
      worst = std::max(worst, std::abs(double(flat.const_data_ptr<float>()[i]) - expected[i]));
    }
    EXPECT_GT(scale, 0.1);
    EXPECT_LT(worst, 1e-5 * scale);
  }
}

TEST_P(SegmentationTwin, GradientsAreEqual) {
  fill_all(*model_);
  model_->set_training(true);
  const at::Tensor logits = model_->forward(symmetric("input", {2, 3, kSize, kSize}, 2));
  const at::Tensor loss = at::cross_entropy_loss(logits, labels(2, kMaskClasses, kSize));
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), golden_["loss"].get<double>(), 1e-4);
  for (const auto& [name, tensor] : model_->parameters()) {
    const double norm = golden_["gradients"][name];
    // BatchNorm cancels a bias before it: its gradient is only rounding.
    EXPECT_NEAR(tensor.grad().to(at::kDouble).norm().item<double>(), norm, 5e-3 * norm + 1e-5)
        << name;
  }
}

TEST_P(SegmentationTwin, EncoderThenDecoderEqualsTheModel) {
  const at::NoGradGuard no_grad;
  model_->set_training(false);
  const auto encoder = model_->facets().encoder;
  ASSERT_TRUE(encoder);
  const at::Tensor images = symmetric("input", {2, 3, kSize, kSize}, 2);
  EXPECT_TRUE(at::equal(encoder->decode(encoder->encode(images)), model_->forward(images)));
}

TEST_P(SegmentationTwin, AnImpossibleSizeIsRefused) {
  EXPECT_NE(
      std::string(error_of([] { make_segmenter(GetParam(), 36); }).what()).find("multiples of"),
      std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Model, SegmentationTwin, ::testing::Values("unet", "toy_seg"),
                         [](const auto& tested) { return tested.param; });

TEST(FrozenStatistics, AreUnchangedIfTheParametersAreFrozen) {
  const auto model = make_segmenter("unet");
  for (const auto& [name, tensor] : model->parameters())
    tensor.requires_grad_(!name.starts_with("encoder."));
  model->facets().keep_frozen_statistics();
  model->set_training(false);
  model->set_training(true);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : model->buffers()) before[name] = tensor.clone();
  model->forward(symmetric("input", {2, 3, kSize, kSize}, 2));
  for (const auto& [name, tensor] : model->buffers())
    EXPECT_EQ(at::equal(before[name], tensor), name.starts_with("encoder.")) << name;
}

class Flattened : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) { return norm_(images.flatten(1)); }

 private:
  torch::nn::BatchNorm1d norm_{register_module("norm", torch::nn::BatchNorm1d(12))};
};

TEST(FrozenStatistics, AreUnchangedInAUsersModelToo) {
  const auto model = make_module_model<Flattened>();
  for (const auto& [name, tensor] : model->parameters()) tensor.requires_grad_(false);
  model->facets().keep_frozen_statistics();
  const at::Tensor before = model->buffers().at(0).tensor.clone();
  model->forward(symmetric("input", {4, 3, 2, 2}, 2));
  EXPECT_TRUE(at::equal(model->buffers().at(0).tensor, before));
}

TEST(Weights, OnlyAnEncodersWeightsCanBeLoaded) {
  const testing::TempDir dir;
  const auto from = make_segmenter("toy_seg"), to = make_segmenter("toy_seg");
  fill_all(*from);
  write_safetensors(Env::posix(), dir / "w.safetensors", from->parameters(), {});
  std::map<std::string, at::Tensor> fresh;
  for (const auto& [name, tensor] : to->parameters()) fresh[name] = tensor.detach().clone();
  const auto loaded = load_weights(Env::posix(), dir / "w.safetensors", *to, {"encoder.*"});
  EXPECT_EQ(loaded.taken.size(), 8u);
  const auto expected = from->parameters(), found = to->parameters();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::equal(found[i].tensor, found[i].name.starts_with("encoder.")
                                               ? expected[i].tensor
                                               : fresh[found[i].name]))
        << found[i].name;
  const Error error =
      error_of([&] { load_weights(Env::posix(), dir / "w.safetensors", *to, {"backbone.*"}); });
  EXPECT_NE(std::string(error.what()).find("\"backbone.*\""), std::string::npos);
}

TEST(Weights, WeightsOfAnotherShapeAreRefusedByName) {
  const testing::TempDir dir;
  const auto from = make_segmenter("toy_seg");
  auto tensors = from->parameters();
  tensors[2].tensor = tensors[2].tensor.detach().narrow(0, 0, 1);
  write_safetensors(Env::posix(), dir / "w.safetensors", tensors, {});
  const Error error = error_of([&] {
    load_weights(Env::posix(), dir / "w.safetensors", *make_segmenter("toy_seg"), {"encoder.*"});
  });
  EXPECT_NE(std::string(error.what()).find("encoder.2.weight [1, 2, 2, 2] instead of [4, 2, 2, 2]"),
            std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace saturate
