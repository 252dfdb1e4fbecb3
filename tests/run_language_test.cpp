// Language models: whole runs, and texts from them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "data/markov_text.h"
#include "run/text_generation.h"
#include "saturate/data/error.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/onnx_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::read_metrics;
using testing::run_saturate;
using testing::TempDir;

// Twelve symbols: their chain is learnt within seconds.
constexpr const char* kTextRecipe =
    "seed = 2\n[data]\nsource = \"synth-text:symbols=12,context=24,count=1200\"\n"
    "eval_source = \"synth-text:symbols=12,context=24,count=100,split=test\"\nthreads = 1\n"
    "[model]\nname = \"gpt_tiny\"\n[optimizer]\nname = \"adamw\"\nlr = 0.01\n"
    "betas = [0.9, 0.95]\n[train]\nbatch = 20\nepochs = 6\nthreads = 1\ndevice = "
    "\"cpu\"\n[watch]\nevery = 10\n";

class LanguageRun : public ::testing::Test {
 protected:
  using Settings = std::vector<std::string>;

  TrainerOptions options(const std::string& name) const {
    return testing::saving_options(dir_ / name);
  }
  TrainResult train(const std::string& name, const Settings& settings = {}) {
    return Trainer(Env::posix(), parse_recipe(kTextRecipe, "test", settings), options(name)).run();
  }
  void expect_refused(const Settings& settings, const std::string& problem) {
    const Error error = error_of([&] { train("refused", settings); });
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
  }

  TempDir dir_;
};

TEST_F(LanguageRun, TakesTheTaskVocabularyAndMetricsFromTheSource) {
  const TrainResult result = train("run");
  const Recipe saved = load_recipe(Env::posix(), dir_ / "run/recipe.toml");
  EXPECT_EQ(saved.train.task, TaskKind::kLanguage);
  EXPECT_EQ(saved.train.monitor, "eval_perplexity");
  EXPECT_EQ(saved.model.classes, 12);
  const double least = MarkovText(12, 0).least_loss(24);
  const double after_one = MarkovText(12, 0).least_loss(1);
  EXPECT_GT(result.eval->loss, least * 0.97) << "nothing can predict better";
  EXPECT_LT(result.eval->loss, after_one - 0.1) << "it looks at two symbols";
  for (const auto& record : read_metrics(dir_ / "run")) {
    const double loss = record["loss"];
    EXPECT_NEAR(record["perplexity"].get<double>(), std::exp(loss), 1e-3 * std::exp(loss));
    EXPECT_NEAR(record["bits_per_token"].get<double>(), loss / std::log(2), 1e-3);
    EXPECT_GE(record["accuracy"].get<double>(), 0);
  }
  EXPECT_NE(format_summary(result).find("perplexity"), std::string::npos);
}

TEST_F(LanguageRun, MayHaveMoreOutputsThanTheVocabulary) {
  train("run", {"model.classes=64", "train.epochs=1"});
  const Recipe saved = load_recipe(Env::posix(), dir_ / "run/recipe.toml");
  EXPECT_EQ(saved.model.classes, 64);
  expect_refused({"model.classes=11"}, "model.classes is 11, and the vocabulary has 12 tokens");
}

TEST_F(LanguageRun, WithMicroBatchesAndCheckpointedSegmentsHasTheSameLosses) {
  train("whole", {"train.epochs=1"});
  train("parts", {"train.epochs=1", "train.accumulate=4", "train.checkpoint_segments=2"});
  const auto expected = testing::losses(dir_ / "whole", "step"),
             found = testing::losses(dir_ / "parts", "step");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4);
}

TEST_F(LanguageRun, InBf16Learns) {
  EXPECT_LT(train("run", {"precision.mode=bf16", "train.epochs=1"}).eval->loss, 2.35);
}

TEST_F(LanguageRun, ImpossibleSettingsAreUsageErrors) {
  expect_refused({"model.name=resnet18"}, "resnet18 takes images");
  expect_refused({"train.task=classify"}, "the target is not a class");
  expect_refused({"train.label_smoothing=0.1"}, "train.label_smoothing");
  expect_refused({"data.eval_source=synth-text:symbols=13,context=24"}, "below 13");
  expect_refused({"data.source=synth-table:", "data.eval_source=", "train.task=language"},
                 "the source has no tokens of a known vocabulary");
  expect_refused({"data.source=synth:", "data.eval_source=", "train.task=language"},
                 "each image of the source has a class");
  testing::write_file(dir_ / "t.bin", std::string(400, '\1'));
  expect_refused({"data.source=tokens:" + (dir_ / "t.bin") + ",context=24", "data.eval_source="},
                 "the target is of whole numbers");
  expect_refused({"data.source=synth-table:", "data.eval_source="}, "gpt_tiny is a language model");
}

TEST_F(LanguageRun, ReadsTheBytesOfATextAndContinuesIt) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "0123456789\n";
  testing::write_file(dir_ / "t.txt", text);
  const TrainResult result =
      train("run", {"data.source=tokens:" + (dir_ / "t.txt") + ",context=24,type=uint8",
                    "data.eval_source=tokens:" + (dir_ / "t.txt") + ",context=24,type=uint8",
                    "train.epochs=8"});
  EXPECT_TRUE(result.eval->value("bpb").has_value());
  const auto said =
      run_saturate("eval '" + (dir_ / "run") + "' --generate 345 --tokens 19 --temperature 0");
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(said.out, "3456789\n0123456789\n012\n") << said.err;
  const auto bytes = run_saturate("eval '" + (dir_ / "run") +
                                  "' --generate '\xc3\u00e9' --tokens 1 --temperature 0");
  EXPECT_TRUE(bytes.out.starts_with("\\xc3\u00e9")) << "whole characters: " << bytes.out;
}

TEST_F(LanguageRun, GeneratesTheSameTextFromTheSameSeed) {
  train("run", {"train.epochs=1", "model.classes=64"});
  const auto text = [&](const std::string& arguments) {
    const auto said = run_saturate("eval '" + (dir_ / "run") + "' --generate " + arguments);
    EXPECT_EQ(said.exit_code, 0) << said.err;
    return said.out;
  };
  const std::string first = text("--tokens 60 --seed 1");
  EXPECT_EQ(first.size(), 61u);
  EXPECT_EQ(first.find_first_not_of(" .0123456789\n"), std::string::npos) << first;
  EXPECT_EQ(text("--tokens 60 --seed 1"), first);
  EXPECT_NE(text("--tokens 60 --seed 2"), first);
  EXPECT_EQ(text("--tokens 60 --top-k 1"), text("--tokens 60 --temperature 0"));
  EXPECT_TRUE(text("123 --tokens 3").starts_with("123"));
  const std::string run = "eval '" + (dir_ / "run") + "'";
  expect_error(run_saturate(run + " --generate abc"), 2, {"\"a\"", "vocabulary"});
  expect_error(run_saturate(run + " --generate --data x"), 2, {"--generate"});
  expect_error(run_saturate(run), 2, {"--data"});
  expect_error(run_saturate(run + " --data x --tokens 3"), 2, {"--generate"});
}

TEST_F(LanguageRun, OtherTasksHaveNoText) {
  train("table", {"data.source=synth-table:count=80", "data.eval_source=", "model.name=mlp",
                  "train.epochs=1"});
  expect_error(run_saturate("eval '" + (dir_ / "table") + "' --generate"), 2,
               {"did not train a language model"});
}

// ---- Drawing

TEST(DrawnToken, HasTheProbabilitiesOfTheLogits) {
  const at::Tensor logits = at::tensor({std::log(0.1f), std::log(0.6f), std::log(0.3f)});
  const auto shares = [&](const GenerationOptions& options) {
    std::map<int64_t, double> found;
    for (int i = 0; i < 1000; ++i) found[drawn_token(logits, options, (i + 0.5) / 1000)] += 0.001;
    return found;
  };
  auto found = shares({});
  EXPECT_NEAR(found[0], 0.1, 1e-3);
  EXPECT_NEAR(found[1], 0.6, 1e-3);
  found = shares({.temperature = 0.5});
  EXPECT_NEAR(found[1], 0.36 / (0.01 + 0.36 + 0.09), 1e-3);
  found = shares({.top_k = 2});
  EXPECT_NEAR(found[0], 0, 1e-9);
  EXPECT_NEAR(found[2], 1 / 3.0, 1e-3);
  found = shares({.temperature = 0});
  EXPECT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[1], 1, 1e-6) << "all of them";
}

// The next token is the sum of those seen, modulo 10; an output beyond the vocabulary is likelier.
TEST(GenerateTokens, SeesTheContextAndNoMore) {
  std::vector<int64_t> lengths;
  testing::FunctionModel model([&](const at::Tensor& tokens) {
    lengths.push_back(tokens.size(1));
    const at::Tensor logits = at::full({1, tokens.size(1), 12}, 0.0);
    logits[0][tokens.size(1) - 1][tokens.sum().item<int64_t>() % 10] = 5;
    logits.select(2, 11).fill_(9);
    return logits;
  });
  std::vector<int64_t> found;
  generate_tokens(model, at::kCPU, 3, 10, {1, 2}, {.tokens = 5, .temperature = 0},
                  [&](int64_t token) {
                    found.push_back(token);
                    return true;
                  });
  EXPECT_EQ(found, (std::vector<int64_t>{3, 6, 1, 0, 7}));
  EXPECT_EQ(lengths, (std::vector<int64_t>{2, 3, 3, 3, 3}));
  int count = 0;
  generate_tokens(model, at::kCPU, 3, 10, {1}, {.tokens = 5}, [&](int64_t) { return ++count < 2; });
  EXPECT_EQ(count, 2);
}

TEST(GenerateTokens, LogitsThatAreNotFiniteAreAnError) {
  testing::FunctionModel model([](const at::Tensor&) { return at::full({1, 1, 3}, std::nan("")); });
  const Error error = error_of(
      [&] { generate_tokens(model, at::kCPU, 3, 3, {1}, {}, [](int64_t) { return true; }); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
}

TEST(Vocabulary, IsOfBytesSymbolsOrNumbers) {
  const Vocabulary bytes(256, ""), symbols(3, "abc"), numbers(300, "");
  EXPECT_EQ(bytes.tokens("a\n\xff"), (std::vector<int64_t>{97, 10, 255}));
  EXPECT_EQ(bytes.text(200), "\xc8");
  EXPECT_EQ(bytes.first(), 10);
  EXPECT_EQ(symbols.tokens("cab"), (std::vector<int64_t>{2, 0, 1}));
  EXPECT_EQ(symbols.text(1), "b");
  EXPECT_EQ(symbols.first(), 0);
  EXPECT_EQ(numbers.tokens("7, 299 0"), (std::vector<int64_t>{7, 299, 0}));
  EXPECT_EQ(numbers.text(17), "17 ");
  EXPECT_FALSE(numbers.is_text());
  for (const char* wrong : {"300", "-1", "a", "1.5"})
    EXPECT_EQ(error_of([&] { numbers.tokens(wrong); }).kind(), ErrorKind::kUsage) << wrong;
  EXPECT_EQ(error_of([&] { symbols.tokens("abcd"); }).kind(), ErrorKind::kUsage);
  const Error error = error_of([&] { symbols.tokens("ab\u96dbc"); });
  EXPECT_NE(error.reason().find("the character \"\u96db\","), std::string::npos) << error.reason();
}

}  // namespace
}  // namespace saturate
