// GPT-2 compared with Hugging Face's (tests/oracles/language_goldens.py), and its weights in other
// programs' files.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/export_model.h"
#include "model/factories.h"
#include "saturate/data/error.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/language_testing.h"
#include "tests/paths.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::fill_all;
using testing::kVocabulary;
using testing::language_input;
using testing::language_model;
using testing::symmetric;
using testing::TempDir;
using testing::tokens;

nlohmann::json golden() {
  std::ifstream file(testing::source_path("tests/goldens/model/gpt_tiny.json"));
  return nlohmann::json::parse(file);
}

at::Tensor golden_logits() {
  const auto rows = golden()["logits"].get<std::vector<std::vector<std::vector<float>>>>();
  std::vector<float> flat;
  for (const auto& sequence : rows)
    for (const auto& row : sequence) flat.insert(flat.end(), row.begin(), row.end());
  return at::tensor(flat).view({2, testing::kContext, kVocabulary});
}

TEST(Gpt, HasTheNamesShapesAndFirstWeightsOfItsTwin) {
  const auto json = golden();
  const auto model = language_model();
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), json["parameters"].size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].name, json["parameters"][i][0].get<std::string>());
    EXPECT_EQ(parameters[i].tensor.sizes().vec(),
              json["parameters"][i][1].get<std::vector<int64_t>>());
  }
  EXPECT_TRUE(model->buffers().empty());
  testing::expect_first_weights(*model, json["initial"]);
}

TEST(Gpt, LogitsEqualHuggingFaces) {
  const at::NoGradGuard no_grad;
  const at::Tensor expected = golden_logits();
  for (const Attention attention : {Attention::kSdpa, Attention::kNaive}) {
    const auto model = language_model("gpt_tiny", attention);
    fill_all(*model);
    const at::Tensor found = model->forward(tokens("tokens"));
    const double scale = expected.abs().max().item<double>();
    EXPECT_GT(scale, 1);
    EXPECT_LT((found - expected).abs().max().item<double>(), 1e-5 * scale);
  }
}

// As a GPU computes the logits.
TEST(Gpt, APaddedProductHasThePlainOnesValuesAndGradients) {
  const at::Tensor values = testing::symmetric("x", {2, 3, 5}, 1).to(at::kDouble);
  for (const int64_t outputs : {13, 16}) {
    const at::Tensor weights = testing::symmetric("w", {outputs, 5}, 1).to(at::kDouble);
    std::vector<at::Tensor> found, expected;
    for (const bool padded : {true, false}) {
      const at::Tensor x = values.clone().requires_grad_();
      const at::Tensor w = weights.clone().requires_grad_();
      const at::Tensor y = padded ? padded_linear(x, w, 8) : at::linear(x, w);
      EXPECT_EQ(y.size(2), outputs);
      y.pow(3).sum().backward();
      (padded ? found : expected) = {y, x.grad(), w.grad()};
    }
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i])) << i;
  }
}

enum class GradientMemory { kOwn, kShared, kTooShort, kDense };

// Zeros are written between a gradient's rows, unless that memory is also another tensor's.
TEST(Gpt, APaddedProductsGradientIsCopiedUnlessItsMemoryHasRoom) {
  const at::Tensor x = testing::symmetric("x", {2, 3, 5}, 1);
  const at::Tensor weights = testing::symmetric("w", {13, 5}, 1);
  using enum GradientMemory;
  for (const auto kind : {kOwn, kShared, kTooShort, kDense}) {
    SCOPED_TRACE(int(kind));
    const at::Tensor w = weights.clone().requires_grad_();
    const int64_t stride = kind == kDense ? 13 : 16;
    at::Tensor memory = at::full({kind == kTooShort ? 5 * 16 + 13 : 6 * stride}, 7.0f), gradient;
    {
      const at::AutoDispatchBelowADInplaceOrView below;  // autograd's view would share it
      gradient = memory.as_strided({2, 3, 13}, {3 * stride, stride, 1});
      gradient.copy_(testing::symmetric("g", {2, 3, 13}, 1));
    }
    const at::Tensor expected = gradient.flatten(0, 1).t().mm(x.flatten(0, 1));
    if (kind != kShared) memory = at::Tensor();
    padded_linear(x, w, 8).backward(gradient);
    EXPECT_TRUE(at::allclose(w.grad(), expected));
    if (kind == kDense) continue;
    const at::Tensor between = gradient.as_strided({5, 3}, {16, 1}, 13);
    EXPECT_TRUE(between.eq(kind == kOwn ? 0 : 7).all().item<bool>());
  }
}

// The loss itself has none.
TEST(Gpt, APaddedProductHasASecondDerivative) {
  const at::Tensor x = testing::symmetric("x", {3, 5}, 1);
  const at::Tensor w = testing::symmetric("w", {13, 5}, 1).requires_grad_();
  const auto first = torch::autograd::grad({padded_linear(x, w, 8).pow(2).sum()}, {w}, {},
                                           /*retain_graph=*/true, /*create_graph=*/true);
  const auto second = torch::autograd::grad({first[0].sum()}, {w});
  EXPECT_TRUE(at::allclose(second[0], 2 * x.t().mm(x).sum(0).expand({13, 5})));
}

// In double.
at::Tensor backward(Model& model, int segments = 0) {
  fill_all(model);
  for (const auto& [name, tensor] : model.parameters()) tensor.set_data(tensor.to(at::kDouble));
  const at::Tensor logits =
      segments == 0 ? model.forward(tokens("tokens"))
                    : checkpoint_sequential(model.facets().stages, segments, tokens("tokens"));
  at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens("next").flatten());
  loss.backward();
  return loss;
}

TEST(Gpt, GradientsEqualHuggingFaces) {
  const auto json = golden()["training"];
  const auto model = language_model();
  EXPECT_NEAR(backward(*model).item<double>(), json["loss"].get<double>(), 1e-9);
  for (const auto& [name, tensor] : model->parameters()) {
    const double norm = json["gradients"][name][0];
    EXPECT_NEAR(tensor.grad().norm().item<double>(), norm, 1e-7 * norm) << name;
    const double product =
        tensor.grad().mul(symmetric("probe:" + name, tensor.sizes(), 1)).sum().item<double>();
    EXPECT_NEAR(product, json["gradients"][name][1].get<double>(), 1e-7 * norm) << name;
  }
}

TEST(Gpt, CheckpointedSegmentsGiveTheSameGradients) {
  const auto whole = language_model();
  backward(*whole);
  const auto expected = whole->parameters();
  EXPECT_EQ(whole->facets().stages.size(), 4u);
  for (const int segments : {1, 2, 3, 4}) {
    const auto model = language_model();
    backward(*model, segments);
    const auto found = model->parameters();
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(at::equal(found[i].tensor.grad(), expected[i].tensor.grad())) << found[i].name;
  }
}

TEST(Gpt, ATokenChangesOnlyItsOwnAndLaterLogits) {
  const at::NoGradGuard no_grad;
  const auto model = language_model();
  fill_all(*model);
  const at::Tensor first = tokens("tokens"), other = first.clone();
  other.select(1, 9).add_(1).remainder_(kVocabulary);
  const at::Tensor before = model->forward(first), after = model->forward(other);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 9), after.narrow(1, 0, 9), 1e-5, 1e-5));
  EXPECT_FALSE(at::allclose(before.select(1, 9), after.select(1, 9), 1e-2, 1e-2));
  EXPECT_TRUE(
      at::allclose(model->forward(first.narrow(1, 0, 9)), before.narrow(1, 0, 9), 1e-5, 1e-5))
      << "a shorter sequence";
}

TEST(Gpt, SizesAreThoseOfTheirDescriptions) {
  const auto count = [](const std::string& name, const ModelInput& input) {
    int64_t weights = 0;
    for (const auto& each : language_model(name, Attention::kSdpa, input)->parameters())
      weights += each.tensor.numel();
    return weights;
  };
  // 12 D^2 + 13 D a layer, 2 D at the end.
  EXPECT_EQ(count("gpt_micro", language_input(64, 128)),
            4 * (12 * 128 * 128 + 13 * 128) + 2 * 128 + (64 + 128) * 128);
  EXPECT_EQ(count("gpt_mini", language_input(65, 256)),
            6 * (12 * 384 * 384 + 13 * 384) + 2 * 384 + (65 + 256) * 384);
  EXPECT_EQ(count("gpt2", language_input(50257, 1024)), 124'439'808) << "OpenAI's GPT-2";
}

TEST(Gpt, TakesOnlyTokens) {
  ModelOptions options;
  options.name = "gpt_tiny";
  ModelInput numbers{10, 0, Env::posix()};
  numbers.tensor = {"x", ElementType::kFloat32, {16}, false, 0};
  for (const ModelInput& input : {ModelInput{10, 32, Env::posix()}, numbers}) {
    const Error error = error_of([&] { make_model(options, input); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "model.name");
  }
  options.name = "resnet18";
  const Error error = error_of([&] { make_model(options, language_input()); });
  EXPECT_NE(error.remedy().find("gpt_tiny"), std::string::npos) << error.remedy();
}

// A file with the model's weights as another program writes them.
class GptFile : public ::testing::Test {
 protected:
  GptFile() { fill_all(*source); }

  std::string written(const std::vector<NamedTensor>& more, const std::string& prefix = "") {
    std::vector<NamedTensor> all = more;
    for (const auto& [name, tensor] : source->parameters()) all.push_back({prefix + name, tensor});
    write_safetensors(Env::posix(), dir / "w.safetensors", all, {});
    return dir / "w.safetensors";
  }
  at::Tensor weight(const std::string& name) const {
    for (const auto& each : source->parameters())
      if (each.name == name) return each.tensor.detach();
    return {};
  }
  void expect_loaded(const std::string& path, const std::string& prefix = "") {
    const auto model = language_model();
    const LoadedWeights loaded = load_weights(Env::posix(), path, *model, {}, prefix);
    EXPECT_TRUE(loaded.fresh.empty());
    EXPECT_EQ(loaded.taken.size(), model->parameters().size());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(model->forward(tokens("tokens")), source->forward(tokens("tokens"))));
  }

  TempDir dir;
  const std::unique_ptr<Model> source = language_model();
};

TEST_F(GptFile, OfHuggingFaceIsLoadedWithItsPrefixAndWithout) {
  const at::Tensor head = weight("wte.weight").clone();
  const at::Tensor mask = at::ones({1, 1, 16, 16}, at::kBool).tril();
  expect_loaded(written({}));
  expect_loaded(written({}, "transformer."));
  expect_loaded(written({}, "transformer."), "transformer.");
  expect_loaded(written({{"lm_head.weight", head}}, "transformer."));
  expect_loaded(written({{"lm_head.weight", head}}, "module.transformer."));
  expect_loaded(written({{"h.0.attn.bias", mask}, {"h.1.attn.bias", mask}}));
}

TEST_F(GptFile, WithoutTheEmbeddingHasItInTheHead) {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : source->parameters())
    all.push_back({name == "wte.weight" ? "lm_head.weight" : "transformer." + name, tensor});
  write_safetensors(Env::posix(), dir / "w.safetensors", all, {});
  expect_loaded(dir / "w.safetensors");
}

TEST_F(GptFile, WithAnUntiedHeadIsRefused) {
  const auto model = language_model();
  const std::string path = written({{"lm_head.weight", weight("wte.weight") + 1}}, "transformer.");
  const Error error = error_of([&] { load_weights(Env::posix(), path, *model); });
  EXPECT_EQ(error.reason(),
            "lm_head.weight differs from wte.weight, which the model uses for both");
}

TEST_F(GptFile, OfALongerContextGivesItsFirstPositions) {
  const auto model = language_model("gpt_tiny", Attention::kSdpa, language_input(kVocabulary, 5));
  load_weights(Env::posix(), written({}), *model);
  const at::NoGradGuard no_grad;
  const at::Tensor five = tokens("tokens").narrow(1, 0, 5);
  EXPECT_TRUE(at::equal(model->forward(five), source->forward(five)));
  const auto longer = language_model("gpt_tiny", Attention::kSdpa, language_input(kVocabulary, 17));
  EXPECT_NE(error_of([&] { load_weights(Env::posix(), written({}), *longer); })
                .reason()
                .find("wpe.weight [16, 64] instead of [17, 64]"),
            std::string::npos);
}

TEST_F(GptFile, OfAnotherVocabularyOrWithoutALayerIsRefused) {
  const auto model = language_model("gpt_tiny", Attention::kSdpa, language_input(66));
  EXPECT_NE(error_of([&] { load_weights(Env::posix(), written({}), *model); })
                .reason()
                .find("wte.weight [65, 64] instead of [66, 64]"),
            std::string::npos);
  std::vector<NamedTensor> all = source->parameters();
  std::erase_if(all, [](const NamedTensor& each) { return each.name.starts_with("ln_f"); });
  write_safetensors(Env::posix(), dir / "w.safetensors", all, {});
  const auto whole = language_model();
  EXPECT_NE(error_of([&] { load_weights(Env::posix(), dir / "w.safetensors", *whole); })
                .reason()
                .find("missing: ln_f.weight, ln_f.bias"),
            std::string::npos);
}

TEST(GptExport, TorchScriptComputesTheLogits) {
  const at::NoGradGuard no_grad;
  const TempDir dir;
  const auto model = language_model();
  fill_all(*model);
  export_torchscript(Env::posix(), dir / "m.pt", *model, language_input());
  torch::jit::Module program = torch::jit::load(dir / "m.pt");
  const at::Tensor input = tokens("tokens", 3);
  EXPECT_TRUE(at::allclose(program.forward({input}).toTensor(), model->forward(input), 1e-5, 1e-5));
  EXPECT_NO_THROW(program.attr("wte"));
}

TEST(GptExport, OnnxKeepsTheWeightsUnderTheirNames) {
  const TempDir dir;
  for (const Attention attention : {Attention::kSdpa, Attention::kNaive}) {
    const auto model = language_model("gpt_tiny", attention);
    fill_all(*model);
    export_onnx(Env::posix(), dir / "m.onnx", *model, language_input(), {{"model", "gpt_tiny"}});
    const std::string file = testing::read_text(dir / "m.onnx");
    for (const auto& each : model->parameters())
      EXPECT_NE(file.find(each.name), std::string::npos) << each.name;
    EXPECT_NE(file.find("Gather"), std::string::npos);
  }
}

}  // namespace
}  // namespace saturate
