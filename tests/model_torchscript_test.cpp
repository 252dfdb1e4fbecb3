// Modules that Python scripted or traced (tests/oracles/weights_goldens.py) as models, and models
// as TorchScript programs.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cerrno>

#include "model/export_model.h"
#include "saturate/data/error.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::symmetric;
using testing::TempDir;

const std::string kWeightFiles = testing::source_path("tests/goldens/weights/");

std::unique_ptr<Model> load(const std::string& path, int classes = 10, int size = 16) {
  ModelOptions options;
  options.name = "torchscript";
  options.file = path;
  return make_model(options, {classes, size, Env::posix()});
}

class Script : public ::testing::TestWithParam<const char*> {};

TEST_P(Script, ReturnsPythonsLogits) {
  const at::NoGradGuard no_grad;
  const auto expected = read_weights(Env::posix(), kWeightFiles + "scripted_logits.pt");
  const auto model = load(kWeightFiles + GetParam());
  model->set_training(false);
  for (const bool channels_last : {false, true}) {
    model->to(at::kCPU, channels_last);
    EXPECT_TRUE(at::allclose(model->forward(symmetric("input", {2, 3, 16, 16}, 2)),
                             expected.at(0).tensor, 1e-5, 1e-6));
  }
}

TEST_P(Script, HasItsParametersByNameAndLearns) {
  const auto model = load(kWeightFiles + GetParam());
  std::vector<std::string> names;
  for (const auto& named : model->parameters()) names.push_back(named.name);
  EXPECT_EQ(names, (std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                             "fc.weight", "fc.bias"}));
  model->set_training(true);
  const at::Tensor logits = model->forward(symmetric("input", {4, 3, 16, 16}, 2));
  at::cross_entropy_loss(logits, at::arange(4)).backward();
  for (const auto& [name, tensor] : model->parameters())
    EXPECT_TRUE(tensor.grad().defined()) << name;
}

INSTANTIATE_TEST_SUITE_P(TorchScript, Script, ::testing::Values("scripted.pt", "traced.pt"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(TorchScript, TrainingDiffersFromEvaluation) {
  const auto model = load(kWeightFiles + "scripted.pt");
  const at::Tensor images = symmetric("input", {4, 3, 16, 16}, 2);
  const auto statistics = [&] { return model->buffers().at(0).tensor.clone(); };
  const at::Tensor loaded = statistics();
  EXPECT_TRUE(at::equal(loaded, testing::symmetric("norm.running_mean", {4}, 0.25)))
      << "the trial before training changed it";
  model->set_training(true);
  const at::Tensor first = model->forward(images), second = model->forward(images);
  EXPECT_FALSE(at::equal(first, second)) << "no dropout";
  EXPECT_FALSE(at::equal(statistics(), loaded));
  model->set_training(false);
  EXPECT_TRUE(at::equal(model->forward(images), model->forward(images)));
}

std::string refusal(const std::string& path, int classes = 10, int size = 16) {
  const Error error = error_of([&] { load(path, classes, size); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), path);
  EXPECT_EQ(error.reason().find('\n'), std::string::npos) << error.reason();
  const std::string begin = "the TorchScript file cannot be trained: ";
  EXPECT_TRUE(error.reason().starts_with(begin)) << error.reason();
  return error.reason().substr(std::min(begin.size(), error.reason().size()));
}

TEST(TorchScript, AProgramWithoutLogitsIsRefused) {
  EXPECT_EQ(refusal(kWeightFiles + "seven_classes.pt"),
            "for 2 images and 10 classes it returns [2, 7] of type Float");
  EXPECT_EQ(refusal(kWeightFiles + "scripted.pt", 12),
            "for 2 images and 12 classes it returns [2, 10] of type Float");
  EXPECT_TRUE(
      refusal(kWeightFiles + "two_heads.pt").starts_with("it fails on images [2, 3, 16, 16]: "));
  EXPECT_TRUE(refusal(kWeightFiles + "frozen.pt").starts_with("it has no parameters to train"));
}

TEST(TorchScript, AFileThatIsNotAProgramIsRefused) {
  EXPECT_EQ(refusal(kWeightFiles + "none.pt"), "there is no such file");
  EXPECT_TRUE(
      refusal(kWeightFiles + "simple_cnn.pt").starts_with("it is not a TorchScript program"));
  const TempDir dir;
  testing::write_file(dir / "cut.pt",
                      testing::read_text(kWeightFiles + "scripted.pt").substr(0, 999));
  EXPECT_TRUE(refusal(dir / "cut.pt").starts_with("it is not a TorchScript program"));
}

TEST(TorchScript, AFileThatCannotBeReadIsARunError) {
  const std::string path = kWeightFiles + "scripted.pt";
  ModelOptions options;
  options.name = "torchscript";
  options.file = path;
  for (const FileOp op : {FileOp::kOpen, FileOp::kRead}) {
    FaultEnv env(Env::posix());
    env.inject({.match = {op, "scripted.pt"}, .error = EIO});
    const Error error = error_of([&] { make_model(options, {10, 16, env}); });
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_EQ(error.where(), path);
    EXPECT_EQ(error.reason().find(path), std::string::npos) << error.reason();
  }
}

class Exported : public ::testing::TestWithParam<const char*> {};

// For any number of images, in evaluation, and trained further.
TEST_P(Exported, AProgramEqualsTheModel) {
  const at::NoGradGuard no_grad;
  const TempDir dir;
  ModelOptions options;
  options.name = GetParam();
  options.width = 0.25;
  const auto model = make_model(options, {10, 32, Env::posix()});
  for (const auto& tensors : {model->parameters(), model->buffers()})
    for (const auto& named : tensors) testing::fill(named);
  export_torchscript(Env::posix(), dir / "model.pt", *model, ModelInput{10, 32, Env::posix()});
  const auto program = load(dir / "model.pt", 10, 32);
  program->set_training(false);
  for (const int64_t count : {1, 5}) {
    const at::Tensor images = symmetric("input", {count, 3, 32, 32}, 2);
    EXPECT_TRUE(at::allclose(program->forward(images), model->forward(images), 1e-5, 1e-5))
        << count;
  }
  const auto sorted = [](std::vector<NamedTensor> list) {
    std::ranges::sort(list, {}, &NamedTensor::name);
    return list;
  };
  for (const auto member : {&Model::parameters, &Model::buffers}) {
    const auto found = sorted((program.get()->*member)()), own = sorted((model.get()->*member)());
    ASSERT_EQ(found.size(), own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(found[i].name, own[i].name);
      EXPECT_TRUE(at::equal(found[i].tensor, own[i].tensor)) << own[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TorchScript, Exported,
                         ::testing::Values("mlp", "resnet9", "se_resnet18", "mobilenet_v2",
                                           "vit_tiny", "toy_cnn"),
                         [](const auto& tested) { return std::string(tested.param); });

// A program whose branch and sizes depend on the number of images, and that adds a term in
// training.
void save_branching(const std::string& path) {
  torch::jit::Module program("__torch__.Branching");
  program.register_attribute("training", c10::BoolType::get(), true);
  program.register_parameter("weight", symmetric("weight", {12, 10}, 1).requires_grad_(),
                             /*is_buffer=*/false);
  program.define(R"(
    def forward(self, images):
        logits = torch.matmul(images.view(images.size(0), -1), self.weight)
        if images.size(0) > 2:
            logits = logits * 2.0
        if self.training:
            logits = logits + 1.0
        return logits
  )");
  program.save(path);
}

TEST(TorchScript, AProgramIsExportedUnchangedWithItsNewWeights) {
  const at::NoGradGuard no_grad;
  const TempDir dir;
  save_branching(dir / "own.pt");
  const auto model = load(dir / "own.pt", 10, 2);
  model->set_training(true);
  model->parameters().at(0).tensor.mul_(3);
  export_torchscript(Env::posix(), dir / "out.pt", *model, ModelInput{3, 2, Env::posix()});
  EXPECT_FALSE(torch::jit::load(dir / "out.pt").is_training());
  const auto exported = load(dir / "out.pt", 10, 2);
  exported->set_training(false);
  for (const int64_t count : {1, 2, 5}) {
    const at::Tensor images = symmetric("input", {count, 3, 2, 2}, 2);
    const at::Tensor expected =
        at::matmul(images.flatten(1), symmetric("weight", {12, 10}, 3)) * (count > 2 ? 2 : 1);
    EXPECT_TRUE(at::allclose(exported->forward(images), expected, 1e-5, 1e-5)) << count;
  }
}

}  // namespace
}  // namespace saturate
