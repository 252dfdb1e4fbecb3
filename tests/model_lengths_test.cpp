// Models on samples of varying length: resnet18_1d against the same model in Python without padding
// (tests/oracles/length_goldens.py), language models against themselves without padding.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/export_model.h"
#include "saturate/data/error.h"
#include "saturate/feed.h"
#include "saturate/gradient_checkpoint.h"
#include "saturate/task.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/language_testing.h"
#include "tests/paths.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

constexpr int64_t kChannels = 2, kLongest = 40;

ModelInput varying_input(int64_t longest = kLongest) {
  ModelInput input{3, 0, Env::posix()};
  input.tensor = {"x", ElementType::kFloat32, {kChannels + 1, longest}};
  input.tensor.is_sequence = true;
  return input;
}

std::unique_ptr<Model> make_signals(const ModelInput& input,
                                    const std::string& name = "resnet18_1d") {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  auto model = make_model(options, input);
  testing::fill_all(*model);
  return model;
}

std::unique_ptr<Model> make_double_signals() {
  auto model = make_signals(varying_input());
  for (const auto& list : {model->parameters(), model->buffers()})
    for (const auto& [name, tensor] : list)
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(at::kDouble));
  return model;
}

// [N, channels, longest] as a batch padded to `length`, in which padding is not 0 but 7777.
at::Tensor padded(const at::Tensor& samples, const std::vector<int64_t>& lengths, int64_t length) {
  at::Tensor batch = at::full({samples.size(0), kChannels + 1, length}, 7777, samples.options());
  batch.select(1, kChannels).zero_();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const at::Tensor own = batch[int64_t(i)].narrow(1, 0, lengths[i]);
    own.narrow(0, 0, kChannels).copy_(samples[int64_t(i)].narrow(1, 0, lengths[i]));
    own[kChannels].fill_(1);
  }
  return batch;
}

nlohmann::json length_golden() {
  std::ifstream file(testing::source_path("tests/goldens/model/lengths.json"));
  return nlohmann::json::parse(file);
}

TEST(Lengths, NothingDependsOnPadding) {
  const nlohmann::json expected = length_golden();
  const std::vector<int64_t> lengths = expected["lengths"];
  const auto count = std::ssize(lengths);
  const at::Tensor samples =
      testing::symmetric("input", {count, kChannels, kLongest}, 2).to(at::kDouble);
  std::vector<double> logits;
  for (const auto& row : expected["logits"])
    for (const double value : row) logits.push_back(value);
  for (const int64_t length : {40, 48, 77}) {
    SCOPED_TRACE(length);
    const auto model = make_double_signals();
    const at::Tensor batch = padded(samples, lengths, length);
    model->set_training(false);
    const at::Tensor wanted = at::tensor(logits, at::kDouble).view({count, 3});
    {
      const at::NoGradGuard no_grad;
      EXPECT_LT((model->forward(batch) - wanted).abs().max().item<double>(), 1e-9);
    }
    model->set_training(true);
    const at::Tensor loss =
        at::cross_entropy_loss(model->forward(batch), at::arange(count).remainder(3));
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), expected["loss"].get<double>(), 1e-9);
    for (const auto& [name, tensor] : model->parameters()) {
      const double norm = expected["gradients"][name];
      EXPECT_NEAR(tensor.grad().norm().item<double>(), norm, 1e-8 * norm + 1e-12) << name;
    }
    for (const auto& [name, tensor] : model->buffers()) {
      const double norm = expected["buffers"][name];
      EXPECT_NEAR(tensor.to(at::kDouble).norm().item<double>(), norm, 1e-8 * norm) << name;
    }
  }
}

TEST(Lengths, SamplesWithoutPaddingAreThoseOfThePlainModel) {
  ModelInput plain_input = varying_input(100);
  plain_input.tensor.is_sequence = false;
  plain_input.tensor.shape[0] = kChannels;
  const auto plain = make_signals(plain_input), varying = make_signals(varying_input(100));
  for (const int64_t count : {1, 3}) {
    const at::Tensor samples = at::randn({count, kChannels, 100});
    const at::Tensor batch = padded(samples, std::vector<int64_t>(size_t(count), 100), 100);
    for (const bool training : {false, true}) {
      plain->set_training(training);
      varying->set_training(training);
      const at::Tensor a = plain->forward(samples), b = varying->forward(batch);
      EXPECT_TRUE(at::allclose(a, b, 1e-4, 1e-4 * a.abs().max().item<double>()));
    }
  }
}

TEST(Lengths, CheckpointedSegmentsAndFrozenStatisticsAreTheSame) {
  const std::vector<int64_t> lengths = {9, 40, 17};
  const at::Tensor batch = padded(at::randn({3, kChannels, kLongest}, at::kDouble), lengths, 40);
  std::vector<std::vector<at::Tensor>> found;
  for (const int segments : {0, 3}) {
    const auto model = make_double_signals();
    model->set_training(true);
    const auto stages = model->facets().stages;
    const at::Tensor logits =
        segments == 0 ? model->forward(batch) : checkpoint_sequential(stages, segments, batch);
    logits.square().sum().backward();
    found.emplace_back();
    for (const auto& [name, tensor] : model->parameters()) found.back().push_back(tensor.grad());
    for (const auto& [name, tensor] : model->buffers()) found.back().push_back(tensor);
  }
  for (size_t i = 0; i < found[0].size(); ++i)
    EXPECT_TRUE(at::allclose(found[0][i], found[1][i])) << i;
  const auto frozen = make_double_signals();
  for (const auto& [name, tensor] : frozen->parameters()) tensor.set_requires_grad(false);
  frozen->facets().keep_frozen_statistics();
  frozen->set_training(true);
  const at::Tensor trained = frozen->forward(batch);
  frozen->set_training(false);
  EXPECT_TRUE(at::allclose(trained, frozen->forward(batch)));
}

// A rank may have no samples of a batch.
TEST(Lengths, AnEmptyBatchTrains) {
  const auto model = make_signals(varying_input());
  model->set_training(true);
  const at::Tensor logits = model->forward(at::randn({0, kChannels + 1, 16}));
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{0, 3}));
  logits.sum().backward();
}

TEST(Lengths, ProgramsTakeTheMask) {
  const testing::TempDir dir;
  const auto model = make_signals(varying_input());
  export_torchscript(Env::posix(), dir / "x.pt", *model, varying_input());
  export_onnx(Env::posix(), dir / "x.onnx", *model, varying_input(), {});
  torch::jit::Module program = torch::jit::load(dir / "x.pt");
  const at::NoGradGuard no_grad;
  model->set_training(false);
  const at::Tensor batch = padded(at::randn({2, kChannels, kLongest}), {11, 26}, kLongest);
  EXPECT_TRUE(at::allclose(program.forward({batch}).toTensor(), model->forward(batch), 1e-4, 1e-4));
}

// A language model's padded batch against each sample alone, at its own length, weighted by tokens.
TEST(TokenLengths, NothingDependsOnPadding) {
  const std::vector<int64_t> lengths = {3, testing::kContext, 1, 9};
  const at::Tensor tokens = testing::tokens("tokens", 4), next = testing::tokens("next", 4);
  at::Tensor padded = tokens.clone(), labels = next.clone();
  int64_t all = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t padding = testing::kContext - lengths[size_t(i)];
    padded[i].narrow(0, lengths[size_t(i)], padding).zero_();
    labels[i].narrow(0, lengths[size_t(i)], padding).fill_(kIgnoredLabel);
    all += lengths[size_t(i)];
  }
  const auto task = language(testing::kVocabulary, /*varies=*/true);
  EXPECT_EQ(task->counted(labels).item<int64_t>(), all);
  for (const Attention attention : {Attention::kSdpa, Attention::kNaive}) {
    const auto alone = testing::language_model("gpt_tiny", attention),
               together = testing::language_model("gpt_tiny", attention);
    for (const auto& model : {alone.get(), together.get()}) {
      testing::fill_all(*model);
      for (const auto& [name, tensor] : model->parameters())
        tensor.set_data(tensor.to(at::kDouble));
    }
    const at::Tensor logits = together->forward(padded);
    const at::Tensor loss = task->mean_loss(logits, labels, 0);
    loss.backward();
    double expected = 0;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t length = lengths[size_t(i)];
      const at::Tensor own = alone->forward(tokens.narrow(0, i, 1).narrow(1, 0, length))[0];
      EXPECT_LT((own - logits[i].narrow(0, 0, length)).abs().max().item<double>(), 1e-9);
      const at::Tensor share = at::cross_entropy_loss(own, next[i].narrow(0, 0, length)) *
                               (double(length) / double(all));
      share.backward();
      expected += share.item<double>();
    }
    EXPECT_NEAR(loss.item<double>(), expected, 1e-9);
    const auto a = alone->parameters(), b = together->parameters();
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_LT((a[i].tensor.grad() - b[i].tensor.grad()).abs().max().item<double>(), 1e-9)
          << a[i].name;
  }
}

TEST(Lengths, OtherModelsNameThoseThatTakeThem) {
  for (const char* name : {"mlp", "unet3d"}) try {
      make_signals(varying_input(), name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.remedy().find("model.name=resnet18_1d"), std::string::npos) << error.what();
    }
  ModelInput tokens = testing::language_input();
  tokens.tensor.is_sequence = true;
  EXPECT_EQ(tokens.zeros(2).sum().item<int64_t>(), 0);
  EXPECT_NO_THROW(testing::language_model("gpt_tiny", Attention::kSdpa, tokens));
  const Error error = testing::error_of([&] { make_signals(tokens, "mlp"); });
  EXPECT_NE(error.remedy().find("model.name=gpt_tiny"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
