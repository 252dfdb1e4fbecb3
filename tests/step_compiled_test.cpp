// A package's step computes the same as the eager step; making packages needs a Python with torch:
// see compiled_testing.h. step_package_test.cpp tests which packages are refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <sstream>

#include "saturate/data/error.h"
#include "saturate/train_step.h"
#include "step/compiled_step.h"
#include "tests/compiled_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::compiled_model;
using testing::error_of;
using testing::package_recipe;
using testing::random_batch;

// Gradients of loss * factor as autograd computes them.
void eager(Model& model, const Recipe& recipe, const DeviceBatch& batch, double factor) {
  const at::Tensor loss =
      at::cross_entropy_loss(model.forward(batch.images), batch.labels, {}, at::Reduction::Mean,
                             -100, recipe.train.label_smoothing);
  (loss * factor).backward();
}

void expect_tensors_close(const std::vector<NamedTensor>& found,
                          const std::vector<NamedTensor>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i].tensor, expected[i].tensor, tolerance, tolerance))
        << found[i].name << ", at most "
        << (found[i].tensor - expected[i].tensor).abs().max().item<double>() << " off of "
        << expected[i].tensor.abs().max().item<double>();
}

class CompiledStepTest : public testing::CompilingTest {};

// $SATURATE_COMPILED names models to compare instead of the small one (`make compiled`).
std::vector<std::string> compared_models() {
  const char* given = std::getenv("SATURATE_COMPILED");
  std::istringstream words(given ? given : "simple_cnn");
  return {std::istream_iterator<std::string>(words), {}};
}

void train_on(Model& model, double lr) {
  const c10::NoGradGuard no_grad;
  for (auto& [name, tensor] : model.parameters()) {
    tensor.sub_(tensor.grad(), lr);
    tensor.mutable_grad().reset();
  }
}

// Has rectifiers and BatchNorm in depth; needs images of more than 16 pixels.
bool is_deep(const std::string& name) {
  return name.starts_with("resnet") || name == "se_resnet18" || name == "mobilenet_v2";
}

void take_values(const std::vector<NamedTensor>& to, const std::vector<NamedTensor>& from) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

// The difference of all gradients together, relative to their size.
double gradient_error(Model& model, Model& expected) {
  const auto found = model.parameters(), wanted = expected.parameters();
  double wrong = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const at::Tensor a = found[i].tensor.grad(), b = wanted[i].tensor.grad();
    wrong += (a - b).square().sum().item<double>();
    size += b.square().sum().item<double>();
  }
  return std::sqrt(wrong / size);
}

void expect_gradients(Model& model, Model& expected, double tolerance) {
  const auto found = model.parameters(), wanted = expected.parameters();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i].tensor.grad(), wanted[i].tensor.grad(), tolerance, tolerance))
        << found[i].name << " of " << tolerance;
}

// How close a compiled step has to be to an eager one.
struct Closeness {
  double each;      // of each value of a gradient
  double together;  // gradient_error()
  double buffers;
};

// Whether each continues from its own weights, or both from the eager ones: differences in the last
// bits grow from step to step.
enum class Weights { kOwn, kShared };

// 20 steps of each, the losses scaled by 1024 in every other one.
void train_beside_eager(CompiledStep& step, const Recipe& recipe, Model& model, Model& twin,
                        at::ScalarType type, Weights weights, const Closeness& close) {
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    DeviceBatch batch = random_batch(recipe, 8);
    batch.images = batch.images.to(type);
    const double factor = i % 2 ? 1 : 1024;
    eager(twin, recipe, batch, factor);
    const auto output =
        step.run(batch.images, batch.labels, at::full({}, factor, at::TensorOptions().dtype(type)));
    step.add_gradients(output);
    EXPECT_EQ(output.logits.sizes(), (at::IntArrayRef{8, 10}));
    expect_gradients(model, twin, close.each * factor);
    EXPECT_LT(gradient_error(model, twin), close.together);
    expect_tensors_close(model.buffers(), twin.buffers(), close.buffers);
    train_on(model, 0.05 / factor);
    train_on(twin, 0.05 / factor);
    if (weights == Weights::kOwn) continue;
    take_values(twin.parameters(), model.parameters());
    take_values(twin.buffers(), model.buffers());
  }
}

// The package in a TrainStep: micro-batches, clipping, and a smaller batch, which runs eagerly.
void train_by_recipe(Recipe recipe, Model& model, Model& twin, double tolerance) {
  Ledger ledger(Env::posix());
  recipe.train.batch = 16;
  recipe.train.accumulate = 2;
  const auto task = make_task(recipe.train, recipe.model.classes, {});
  RunningMetrics metrics[2] = {RunningMetrics(*task), RunningMetrics(*task)};
  Model* models[] = {&model, &twin};
  for (int i = 0; i < 2; ++i) {
    at::manual_seed(5);
    const auto optimizer = make_optimizer(
        recipe.optimizer, make_parameter_groups(recipe.optimizer, models[i]->parameters()));
    TrainStep trained(*models[i], *task, *optimizer,
                      {.label_smoothing = 0.1, .micro_batch = 8, .clip_norm = 0.1}, ledger);
    if (i == 0)
      trained.use_compiled(std::make_unique<CompiledStep>(Env::posix(), recipe, *models[i]));
    for (const int64_t count : {16, 16, 16}) {
      const DeviceBatch batch = random_batch(recipe, count);
      trained.run(batch, 0.05, metrics[i]);
    }
    EXPECT_EQ(trained.first_uncompiled(), 0);
    const DeviceBatch batch = random_batch(recipe, 5);
    trained.run(batch, 0.05, metrics[i]);
    EXPECT_EQ(trained.first_uncompiled(), i == 0 ? 5 : 0);
  }
  expect_tensors_close(model.parameters(), twin.parameters(), tolerance);
  expect_tensors_close(model.buffers(), twin.buffers(), tolerance);
  const Metrics found = metrics[0].read(), expected = metrics[1].read();
  EXPECT_NEAR(found.loss, expected.loss, tolerance);
  EXPECT_NEAR(*found.value("accuracy"), *expected.value("accuracy"), tolerance < 1e-4 ? 0 : 0.05);
}

Recipe compared_recipe(const std::string& name) {
  Recipe recipe = package_recipe(name);
  recipe.model.dropout = 0;
  if (is_deep(name)) recipe.augment.size = name == "resnet9" ? 32 : 64;
  if (name.starts_with("vit")) recipe.augment.size = 48;  // nine patches
  return recipe;
}

TEST_F(CompiledStepTest, TrainsLikeEager) {
  for (const std::string& name : compared_models()) {
    SCOPED_TRACE(name);
    Recipe recipe = compared_recipe(name);
    recipe.train.compiled = testing::compile_package(dir, recipe);
    const auto model = compiled_model(recipe), twin = compiled_model(recipe);
    CompiledStep step(Env::posix(), recipe, *model);
    EXPECT_EQ(step.micro_batch(), 8);
    // A rectifier's input is occasionally closer to 0 than rounding errors, and its sign differs:
    // one channel's gradients differ there, and slightly all before it. In mobilenet_v2 a variance
    // of 32 values after 50 layers was once more than 1e-5 off.
    const double statistics = name == "mobilenet_v2" ? 1e-4 : 1e-5;
    const Closeness deep{0.1, 5e-2, statistics}, shallow{1e-5, 1e-4, 1e-5};
    train_beside_eager(step, recipe, *model, *twin, at::kFloat, Weights::kShared,
                       is_deep(name) ? deep : shallow);
    train_by_recipe(recipe, *model, *twin, is_deep(name) ? 1e-2 : 1e-5);
  }
}

// The first micro-batch of two has half as many labelled pixels as the other.
TEST_F(CompiledStepTest, UnevenlyLabelledMicroBatchesTrainLikeEager) {
  Recipe recipe = package_recipe("toy_seg");
  recipe.data.source += ",masks=true";
  recipe.model.classes = 11;
  recipe.train.task = TaskKind::kSegment;
  recipe.train.compiled = testing::compile_package(dir, recipe);
  const auto model = compiled_model(recipe), twin = compiled_model(recipe);
  train_by_recipe(recipe, *model, *twin, 1e-5);
}

// All values are converted in place, as Model::to() has no type.
void make_double(Model& model) {
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (auto& [name, tensor] : tensors)
      if (tensor.is_floating_point()) at::Tensor(tensor).set_data(tensor.detach().to(at::kDouble));
}

TEST_F(CompiledStepTest, TrainsInFp64LikeEager) {
  for (const std::string& name : compared_models()) {
    SCOPED_TRACE(name);
    Recipe recipe = compared_recipe(name);
    recipe.train.compiled = testing::compile_package(dir, recipe, "--double");
    const auto model = compiled_model(recipe), twin = compiled_model(recipe);
    make_double(*model);
    make_double(*twin);
    CompiledStep step(Env::posix(), recipe, *model);
    // A rounding error of 1e-15 doubles from step to step in a deep network, and in this one, whose
    // rectifiers switch at 0 and at 6, it is 1 after five steps.
    const bool grows = name == "mobilenet_v2";
    const double close = grows ? 1e-8 : is_deep(name) ? 1e-6 : 1e-9;
    train_beside_eager(step, recipe, *model, *twin, at::kDouble,
                       grows ? Weights::kShared : Weights::kOwn, {close, close, close});
  }
}

// A user's module: logits = W x + a + b, whose two biases have the same gradient.
class TwoBiases : public Model {
 public:
  explicit TwoBiases(double scale_in) : scale(scale_in) {
    at::manual_seed(3);
    weight = at::randn({4, 12}).requires_grad_();
    a = at::randn({4}).requires_grad_();
    b = at::randn({4}).requires_grad_();
  }
  at::Tensor forward(const at::Tensor& images) override {
    return (at::linear(images.flatten(1), weight) + a + b) * scale;
  }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override {
    return {{"weight", weight}, {"a", a}, {"b", b}};
  }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

  double scale;
  at::Tensor weight, a, b;
};

constexpr const char* kTwoBiases = R"(
import torch

class TwoBiases(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 12))
        self.a = torch.nn.Parameter(torch.randn(4))
        self.b = torch.nn.Parameter(torch.randn(4))

    def forward(self, images):
        return torch.nn.functional.linear(images.flatten(1), self.weight) + self.a + self.b

def make(classes, size, width):
    assert (classes, size, width) == (4, 2, 1.0)
    return TwoBiases()
)";

TEST_F(CompiledStepTest, AUsersModuleRunsWithBf16AndAFrozenParameter) {
  Recipe recipe = package_recipe("two_biases");
  recipe.model.classes = 4;
  recipe.data.source = "synth:size=16,count=64,classes=4";
  recipe.augment.size = 2;
  recipe.train.label_smoothing = 0;
  recipe.precision.mode = PrecisionMode::kBf16;
  testing::write_file(dir / "own.py", kTwoBiases);
  recipe.train.compiled =
      testing::compile_package(dir, recipe, "--module '" + (dir / "own.py") + ":make'");
  TwoBiases model(1), twin(1), other(3);
  const DeviceBatch batch = random_batch(recipe, 8);
  const at::Tensor factor = at::full({}, 2.0);
  {
    CompiledStep step(Env::posix(), recipe, other);
    const Error error = error_of([&] { step.run(batch.images, batch.labels, factor); });
    EXPECT_NE(error.reason().find("does not compute what the model does"), std::string::npos);
  }
  CompiledStep step(Env::posix(), recipe, model);
  step.add_gradients(step.run(batch.images, batch.labels, factor));
  eager(twin, recipe, batch, 2);
  EXPECT_TRUE(at::allclose(model.weight.grad(), twin.weight.grad(), 2e-2, 2e-2));
  EXPECT_FALSE(at::allclose(model.weight.grad(), twin.weight.grad(), 1e-6, 1e-6)) << "not bf16";
  model.a.mutable_grad().mul_(10);
  EXPECT_TRUE(at::allclose(model.b.grad(), twin.b.grad(), 2e-2, 2e-2)) << "shares a's memory";
  model.weight.mutable_grad().reset();
  model.weight.requires_grad_(false);
  CompiledStep frozen(Env::posix(), recipe, model);
  frozen.add_gradients(frozen.run(batch.images, batch.labels, factor));
  EXPECT_FALSE(model.weight.grad().defined());
}

}  // namespace
}  // namespace saturate
