// Packages of a compiled step: which are refused, and that the others compute what eager does. The
// latter need a Python with torch to make them: see compiled_testing.h.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <sstream>

#include "saturate/compiled_step.h"
#include "saturate/error.h"
#include "saturate/fault_env.h"
#include "saturate/train_step.h"
#include "tests/compiled_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::package_recipe;
using testing::TempDir;

std::unique_ptr<Model> make(const Recipe& recipe) {
  at::manual_seed(3);
  auto model = make_model(recipe.model, {recipe.model.classes, recipe.augment.size});
  model->to(at::kCPU, recipe.train.channels_last);
  return model;
}

// A package whose library is no library: all that is looked at before it is loaded.
class PackageTest : public ::testing::Test {
 protected:
  PackageTest() {
    recipe.train.compiled = dir / "step.pt2";
    about = testing::describe_package(recipe, *model, library);
  }
  // What loading the package for `used` says.
  std::string refusal(const Recipe& used) {
    testing::write_package(recipe.train.compiled, about, library);
    const auto other = make(used);
    for (auto& [name, tensor] : other->parameters())
      if (name == frozen) tensor.requires_grad_(false);
    const Error error = error_of([&] { CompiledStep step(Env::posix(), used, *other); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), recipe.train.compiled);
    EXPECT_NE(error.remedy().find("tools/compile_step.py"), std::string::npos);
    return error.reason();
  }
  std::string refusal() { return refusal(recipe); }

  TempDir dir;
  Recipe recipe = package_recipe("simple_cnn");
  std::unique_ptr<Model> model = make(recipe);
  std::string library = "no library", frozen;
  nlohmann::json about;
};

constexpr const char* kUnusable = "the compiled step cannot be used: ";

TEST_F(PackageTest, WhatFitsIsRefusedForItsLibraryAlone) {
  EXPECT_TRUE(refusal().starts_with(std::string(kUnusable) + "its library does not load: "))
      << refusal();
}

TEST_F(PackageTest, EachSettingThatDiffersIsNamedWithBothValues) {
  Recipe other = recipe;
  other.train.label_smoothing = 0;
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for train.label_smoothing 0.1, not 0.0");
  other = recipe;
  other.train.batch = 32;
  other.train.accumulate = 2;
  other.precision.mode = PrecisionMode::kBf16;
  EXPECT_EQ(refusal(other), std::string(kUnusable) +
                                "it was made for 8 images at a time, not 16; "
                                "precision.mode \"fp32\", not \"bf16\"");
  other = recipe;
  other.augment.size = 20;
  EXPECT_EQ(refusal(other), std::string(kUnusable) + "it was made for augment.size 16, not 20");
  other = recipe;
  other.model.classes = 7;
  EXPECT_EQ(refusal(other), std::string(kUnusable) + "it was made for model.classes 10, not 7");
  other = recipe;
  other.model.name = "mlp";
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for model.name \"simple_cnn\", not \"mlp\"");
  other = recipe;
  other.train.channels_last = false;
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for train.channels_last true, not false");
}

TEST_F(PackageTest, AnotherTorchOrAProcessorWithMoreIsNamed) {
  about["torch"] = "2.10.1";
  about["processor"] = {"sse2", "avx4096"};
  EXPECT_EQ(refusal(), std::string(kUnusable) + "it was made for torch 2.10.1, not " TORCH_VERSION
                                                "; a processor with avx4096");
}

TEST_F(PackageTest, TheFirstTensorThatDiffersIsNamed) {
  const auto reason_without = [&](const auto& change) {
    const nlohmann::json before = about;
    change();
    const std::string reason = refusal();
    about = before;
    return reason;
  };
  EXPECT_NE(reason_without([&] {
              about["parameters"][0]["name"] = "stem";
            }).find("a model without the parameter conv1.conv.weight"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["parameters"].push_back(about["parameters"][0]);
              about["parameters"].back()["name"] = "extra";
            }).find("a model with the parameter extra"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["parameters"][0]["strides"] = {27, 9, 3, 1};
            })
                .find("conv1.conv.weight [32, 3, 3, 3] with strides [27, 9, 3, 1] Float, not "
                      "[32, 3, 3, 3] with strides [27, 1, 9, 3] Float"),
            std::string::npos);
  EXPECT_NE(reason_without([&] { about["buffers"][0]["type"] = "Half"; }).find("running_mean"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["gradients"].erase(0);
            }).find("a model whose conv1.conv.weight is frozen"),
            std::string::npos);
}

TEST_F(PackageTest, AGradientOfAFrozenParameterIsNoReason) {
  frozen = "conv1.conv.weight";
  about["gradients"].erase(0);
  EXPECT_NE(refusal().find("does not load"), std::string::npos) << refusal();
}

TEST_F(PackageTest, WhatIsNoPackageIsRefused) {
  const auto reason = [&] {
    return error_of([&] { CompiledStep step(Env::posix(), recipe, *model); }).reason();
  };
  EXPECT_NE(reason().find("No such file"), std::string::npos) << reason();
  testing::write_file(recipe.train.compiled, "not a zip file at all");
  EXPECT_NE(reason().find("no PT2 archive, or a damaged one"), std::string::npos) << reason();
  about["format"] = 9;
  EXPECT_NE(refusal().find("its format is 9, and 1 is read here"), std::string::npos);
  about["format"] = 1;
  about.erase("settings");
  EXPECT_NE(refusal().find("settings"), std::string::npos) << refusal();
}

TEST_F(PackageTest, DamageIsSeenBeforeAnyCodeIsLoaded) {
  testing::write_package(recipe.train.compiled, about, library);
  std::string bytes = testing::read_text(recipe.train.compiled);
  const auto at = bytes.find(library);
  ASSERT_NE(at, std::string::npos);
  const auto reason_of = [&](const std::string& text) {
    testing::write_file(recipe.train.compiled, text);
    return error_of([&] { CompiledStep step(Env::posix(), recipe, *model); }).reason();
  };
  std::string flipped = bytes;
  flipped[at + 3] ^= 1;
  EXPECT_NE(reason_of(flipped).find("its library is damaged"), std::string::npos);
  for (size_t length = 0; length < bytes.size(); length += 97)
    EXPECT_TRUE(reason_of(bytes.substr(0, length)).starts_with(kUnusable)) << length;
}

// ---- Packages that run -------------------------------------------------------------------------

struct Batch {
  at::Tensor images, labels;
};

Batch random_batch(const Recipe& recipe, int64_t count) {
  return {at::randn({count, 3, recipe.augment.size, recipe.augment.size})
              .contiguous(at::MemoryFormat::ChannelsLast),
          at::randint(recipe.model.classes, {count}, at::kLong)};
}

// Gradients of loss * factor as autograd gives them.
void eager(Model& model, const Recipe& recipe, const Batch& batch, double factor) {
  const at::Tensor loss =
      at::cross_entropy_loss(model.forward(batch.images), batch.labels, {}, at::Reduction::Mean,
                             -100, recipe.train.label_smoothing);
  (loss * factor).backward();
}

void expect_close(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& expected,
                  double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i].tensor, expected[i].tensor, tolerance, tolerance))
        << found[i].name;
}

class CompiledStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::compiling_python().empty()) GTEST_SKIP() << testing::kNoPython;
    at::set_num_threads(1);
  }
  void compare_with_eager(Recipe recipe, bool deep = false);
  TempDir dir;
};

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

// So that each step's gradients are compared at the same weights: what the last bits of one step
// differ by grows with each step of a deep network.
void take_state(Model& model, Model& other) {
  const c10::NoGradGuard no_grad;
  const auto copy = [](const std::vector<NamedTensor>& to, const std::vector<NamedTensor>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  };
  copy(model.parameters(), other.parameters());
  copy(model.buffers(), other.buffers());
  for (auto& named : model.parameters()) named.tensor.mutable_grad().reset();
}

// The difference of all gradients together over their size, and whether each value is close.
std::pair<double, bool> compare_gradients(Model& model, Model& expected, double tolerance) {
  const auto found = model.parameters(), wanted = expected.parameters();
  double wrong = 0, size = 0;
  bool close = true;
  for (size_t i = 0; i < found.size(); ++i) {
    const at::Tensor a = found[i].tensor.grad(), b = wanted[i].tensor.grad();
    wrong += (a - b).square().sum().item<double>();
    size += b.square().sum().item<double>();
    close = close && at::allclose(a, b, tolerance, tolerance);
  }
  return {std::sqrt(wrong / size), close};
}

// In a deep network a rectifier's input is now and then nearer to 0 than rounding is, and its sign
// another: one channel's gradients differ there, and a little of all before it. In fp64 none do.
void CompiledStepTest::compare_with_eager(Recipe recipe, bool deep) {
  recipe.train.compiled = testing::compile_package(dir, recipe);
  const auto model = make(recipe), twin = make(recipe);
  CompiledStep step(Env::posix(), recipe, *model);
  EXPECT_EQ(step.part(), 8);
  int close = 0;
  for (int i = 0; i < 20; ++i) {
    const Batch batch = random_batch(recipe, 8);
    const double factor = i % 2 ? 1 : 1024;
    eager(*twin, recipe, batch, factor);
    const auto output = step.run(batch.images, batch.labels, at::full({}, factor));
    step.add_gradients(output);
    EXPECT_EQ(output.logits.sizes(), (at::IntArrayRef{8, 10}));
    const auto [error, is_close] = compare_gradients(*model, *twin, 1e-5 * factor);
    EXPECT_LT(error, deep ? 0.1 : 1e-4) << "in step " << i;
    close += is_close;
    expect_close(model->buffers(), twin->buffers(), deep ? 1e-4 : 1e-5);
    train_on(*model, 0.05 / factor);
    take_state(*twin, *model);
  }
  EXPECT_GE(close, deep ? 0 : 20);

  // The same package in the step: parts of a batch, clipped, and a smaller one.
  Ledger ledger(Env::posix());
  recipe.train.batch = 16;
  recipe.train.accumulate = 2;
  RunningMetrics metrics[2];
  Model* models[] = {model.get(), twin.get()};
  for (int i = 0; i < 2; ++i) {
    at::manual_seed(5);
    const auto optimizer = make_optimizer(
        recipe.optimizer, make_parameter_groups(recipe.optimizer, models[i]->parameters()));
    TrainStep trained(*models[i], *optimizer, {.label_smoothing = 0.1, .part = 8, .clip_norm = 0.1},
                      ledger);
    if (i == 0)
      trained.use_compiled(std::make_unique<CompiledStep>(Env::posix(), recipe, *models[i]));
    for (const int64_t count : {16, 16, 16}) {
      const Batch batch = random_batch(recipe, count);
      trained.run({batch.images, batch.labels, {}}, 0.05, metrics[i]);
    }
    EXPECT_EQ(trained.first_uncompiled(), 0);
    const Batch batch = random_batch(recipe, 5);
    trained.run({batch.images, batch.labels, {}}, 0.05, metrics[i]);
    EXPECT_EQ(trained.first_uncompiled(), i == 0 ? 5 : 0);
  }
  const double tolerance = deep ? 1e-2 : 1e-5;
  expect_close(model->parameters(), twin->parameters(), tolerance);
  expect_close(model->buffers(), twin->buffers(), tolerance);
  const Metrics found = metrics[0].read(), expected = metrics[1].read();
  EXPECT_NEAR(found.loss, expected.loss, tolerance);
  EXPECT_NEAR(found.accuracy, expected.accuracy, deep ? 0.05 : 0);
}

TEST_F(CompiledStepTest, TrainsAsEagerDoes) {
  for (const std::string& name : compared_models()) {
    SCOPED_TRACE(name);
    Recipe recipe = package_recipe(name);
    if (name == "resnet9") recipe.augment.size = 32;
    bool deep = name == "resnet9";
    for (const char* other : {"resnet18", "resnet34", "resnet50", "se_resnet18", "mobilenet_v2"})
      if (name == other) {
        recipe.augment.size = 64;
        deep = true;
      }
    recipe.model.dropout = 0;
    compare_with_eager(recipe, deep);
  }
}

// A user's own: logits = W x + a + b, whose two biases have one gradient.
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
  const Batch batch = random_batch(recipe, 8);
  const at::Tensor factor = at::full({}, 2.0);
  {
    CompiledStep step(Env::posix(), recipe, other);
    const Error error = error_of([&] { step.run(batch.images, batch.labels, factor); });
    EXPECT_NE(error.reason().find("computes something else than the model"), std::string::npos);
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
