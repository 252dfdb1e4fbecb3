// Requirements on every model in the table.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "saturate/data/error.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"

namespace saturate {
namespace {

std::unique_ptr<Model> make(const std::string& name, double width = 1,
                            std::pair<int, int> classes_and_size = {10, 32}) {
  ModelOptions options;
  options.name = name;
  options.width = width;
  return make_model(options, {classes_and_size.first, classes_and_size.second, Env::posix()});
}

class EveryModel : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryModel, ReturnsLogitsAndGradients) {
  const auto model = make(GetParam(), 0.25);
  model->set_training(true);
  const at::Tensor logits = model->forward(at::randn({2, 3, 32, 32}));
  std::vector<int64_t> expected = {2, 10};
  if (model->facets().per_pixel) expected.insert(expected.end(), 2, 32);
  EXPECT_EQ(logits.sizes(), expected);
  logits.sum().backward();
  for (const auto& [name, tensor] : model->parameters())
    EXPECT_EQ(tensor.grad().defined(), tensor.requires_grad()) << name;
  EXPECT_EQ(model->facets().norm_without_hook, "");
}

// A height and a width, or an error that asks for a square.
TEST_P(EveryModel, TakesImagesThatAreNotSquareOrRefusesThem) {
  ModelOptions options;
  options.name = GetParam();
  options.width = 0.25;
  const bool needs_square = GetParam().starts_with("vit_") || GetParam() == "toy_cnn";
  try {
    const auto model = make_model(options, {10, {32, 64}, Env::posix()});
    const at::Tensor logits = model->forward(at::randn({2, 3, 32, 64}));
    std::vector<int64_t> expected = {2, 10};
    if (model->facets().per_pixel) expected.insert(expected.end(), {32, 64});
    EXPECT_EQ(logits.sizes(), expected);
    EXPECT_FALSE(needs_square);
  } catch (const Error& error) {
    EXPECT_TRUE(needs_square) << error.what();
    EXPECT_NE(std::string(error.what()).find("needs square images, not of 32x64 pixels"),
              std::string::npos)
        << error.what();
  }
}

TEST(ModelSizes, EachSizeOfTrainingIsChecked) {
  const auto error_for = [](const std::string& name, const ImageSize& other) -> std::string {
    ModelOptions options;
    options.name = name;
    options.width = 0.25;
    ModelInput input{10, 64, Env::posix()};
    input.other_sizes = {other};
    try {
      make_model(options, input);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_for("unet", 32), "no error");
  EXPECT_NE(error_for("unet", 40).find("multiples of 16 pixels; they are 40"), std::string::npos);
  EXPECT_NE(error_for("resnet9", {32, 8}).find("at least 16 pixels, not 32x8"), std::string::npos);
  for (const char* name : {"mlp", "vit_tiny", "toy_cnn"})
    EXPECT_NE(error_for(name, 32).find("takes images of one size"), std::string::npos) << name;
}

TEST_P(EveryModel, ChannelsLastChangesTheLayoutOnly) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  const auto model = make(GetParam(), 0.25);
  model->set_training(false);
  const at::Tensor images = at::randn({2, 3, 32, 32});
  const auto handles = model->parameters();
  const at::Tensor before = model->forward(images);
  model->to(at::kCPU, true);
  const at::Tensor after = model->forward(images.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::allclose(before, after, 1e-4, 1e-5));
  for (const auto& [name, tensor] : handles) {
    if (tensor.dim() == 4) {
      EXPECT_TRUE(tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) << name;
    }
  }
  for (const auto& named : handles) named.tensor.zero_();
  const at::Tensor zeroed = model->forward(images);
  EXPECT_FALSE(zeroed.any().item<bool>());
}

// Gradients and BatchNorm's statistics of one step, with the model's stages in `segments`.
std::vector<at::Tensor> traces_of(const std::string& name, int64_t segments) {
  at::manual_seed(1);
  const auto model = make(name, 0.25);
  {
    const at::NoGradGuard no_grad;  // a last layer of zeros would pass no gradient
    for (const auto& named : model->parameters())
      if (!named.tensor.any().item<bool>()) named.tensor.normal_(0, 0.1);
  }
  model->to(at::kCPU, true);
  model->set_training(true);
  const at::Tensor images = at::randn({3, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor logits = segments == 0
                                ? model->forward(images)
                                : checkpoint_sequential(model->facets().stages, segments, images);
  at::cross_entropy_loss(logits, at::arange(3)).backward();
  std::vector<at::Tensor> traces = {logits.detach()};
  for (const auto& named : model->parameters())
    if (named.tensor.requires_grad()) traces.push_back(named.tensor.grad());
  for (const auto& named : model->buffers()) traces.push_back(named.tensor);
  return traces;
}

TEST_P(EveryModel, LearnsTheSameWithGradientCheckpointing) {
  if (make(GetParam(), 0.25)->facets().per_pixel)
    GTEST_SKIP() << "skips connections: no chain of stages";
  const auto plain = traces_of(GetParam(), 0);
  const size_t stages = make(GetParam(), 0.25)->facets().stages.size();
  EXPECT_GE(stages, 2u);
  for (const int64_t segments : {automatic_segments(stages), int64_t(stages)}) {
    const auto found = traces_of(GetParam(), segments);
    ASSERT_EQ(found.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(found[i], plain[i])) << i;
  }
}

TEST_P(EveryModel, EvaluationChangesNoBuffer) {
  const at::NoGradGuard no_grad;
  const auto model = make(GetParam(), 0.25);
  // BatchNorm's, not a network's frozen weights.
  const auto snapshot = [&] {
    std::vector<at::Tensor> copies;
    for (const auto& [name, tensor] : model->buffers())
      if (name.find("running_") != std::string::npos || name.ends_with("num_batches_tracked"))
        copies.push_back(tensor.clone());
    return copies;
  };
  const auto before = snapshot();
  model->set_training(false);
  model->forward(at::randn({2, 3, 32, 32}));
  const auto evaluated = snapshot();
  model->set_training(true);
  model->forward(at::randn({2, 3, 32, 32}));
  const auto trained = snapshot();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i], evaluated[i]));
    EXPECT_FALSE(at::equal(before[i], trained[i]));
  }
}

std::vector<std::string> image_model_names() {
  std::vector<std::string> names;
  for (const auto& entry : models())
    if (!entry.traits.is_file && !entry.traits.is_language &&
        (!entry.traits.takes_tensors || entry.name == "mlp"))
      names.emplace_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Model, EveryModel, ::testing::ValuesIn(image_model_names()),
                         [](const auto& tested) { return tested.param; });

TEST(Model, SmallNetworkLearnsEightImages) {
  at::manual_seed(2);
  const auto model = make("simple_cnn", 0.25);
  OptimizerOptions options;
  options.lr = 0.05;
  const auto optimizer =
      make_optimizer(options, make_parameter_groups(options, model->parameters()));
  const at::Tensor images = at::randn({8, 3, 32, 32}), labels = at::arange(8);
  model->set_training(true);
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer->zero_grad();
    const at::Tensor value = at::cross_entropy_loss(model->forward(images), labels);
    value.backward();
    optimizer->step(options.lr);
    loss = value.item<double>();
  }
  EXPECT_LT(loss, 0.1);
}

void expect_usage_error(const std::string& name, double width, std::pair<int, int> shape,
                        const std::string& where) {
  try {
    make(name, width, shape);
    ADD_FAILURE() << where;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), where);
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST(Model, ImpossibleOptionsAreUsageErrors) {
  expect_usage_error("resnet19", 1, {10, 32}, "model.name");
  expect_usage_error("mlp", 1, {0, 32}, "model.classes");
  expect_usage_error("mlp", 1, {10, 0}, "augment.size");
  expect_usage_error("simple_cnn", 1, {10, 3}, "augment.size");
  expect_usage_error("resnet9", 1, {10, 7}, "augment.size");
  expect_usage_error("resnet18", 0, {10, 32}, "model.width");
  expect_usage_error("vit_tiny", 1, {10, 40}, "augment.size");
  expect_usage_error("toy_cnn", 1, {10, 512}, "augment.size");
}

}  // namespace
}  // namespace saturate
