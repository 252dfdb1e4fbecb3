// Whole runs of language models on token sequences of varying length.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "saturate/feed.h"
#include "saturate/trainer.h"
#include "tests/app_testing.h"
#include "tests/array_testing.h"
#include "tests/folder_run_testing.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::losses;
using testing::TempDir;

constexpr const char* kCounting =
    "seed = 3\n[data]\nthreads = 1\n[model]\nname = \"gpt_tiny\"\n[optimizer]\nname = \"adamw\"\n"
    "lr = 0.005\n[train]\nbatch = 16\nepochs = 2\nthreads = 1\ndevice = \"cpu\"\n[watch]\n"
    "every = 1\n";

class TokenRun : public testing::FolderRun {
 protected:
  void SetUp() override {
    testing::write_file(dir_ / "a.npz", testing::counting_npz(320, 30));
    testing::write_file(dir_ / "b.npz", testing::counting_npz(53, 20));
  }
  std::string source(const std::string& name, const std::string& vocabulary = "11") const {
    return "npz:" + (dir_ / name) + ",lengths=n,vocabulary=" + vocabulary;
  }
  Recipe recipe(const Settings& settings = {}) const override {
    Settings all = {"data.source=" + source("a.npz"), "data.eval_source=" + source("b.npz")};
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe(kCounting, "test", all);
  }
};

// Every token but a sample's first is known from the one before it.
TEST_F(TokenRun, LearnsFromWhatIsNotPadding) {
  const TrainResult result = train("run", {"train.epochs=3"});
  EXPECT_EQ(result.eval->samples, 53);
  EXPECT_GT(result.eval->value("accuracy").value(), 0.98);
  EXPECT_LT(result.eval->value("perplexity").value(), 1.2);
  const Checkpoint saved = last("run");
  const TensorField input = input_of(saved.fields);
  EXPECT_EQ(input.type, ElementType::kInt64);
  EXPECT_EQ(input.shape, std::vector<int64_t>{29})
      << "the model has no position beyond the longest";
  EXPECT_EQ(input.values, 11);
  const Recipe resolved = load_recipe(Env::posix(), dir_ / "run/recipe.toml");
  EXPECT_EQ(resolved.train.task, TaskKind::kLanguage);
  EXPECT_EQ(resolved.model.classes, 11);
  const auto said = testing::run_saturate("eval '" + (dir_ / "run") +
                                          "' --generate '3 4 5' --tokens 8 --temperature 0");
  EXPECT_EQ(said.out, "3 4 5 6 7 8 9 10 0 1 2 \n") << said.err;
}

// A mean over samples, or over batches, would differ.
TEST_F(TokenRun, AnEvaluationDoesNotDependOnItsBatches) {
  std::vector<double> found;
  for (const std::string batch : {"1", "7", "53"})
    found.push_back(
        train("batch" + batch, {"train.epochs=1", "train.eval_batch=" + batch}).eval->loss);
  EXPECT_NEAR(found[1], found[0], 1e-5);
  EXPECT_NEAR(found[2], found[0], 1e-5);
}

TEST_F(TokenRun, WithMicroBatchesSegmentsOrAPipelineHasTheSameLosses) {
  train("whole", {"train.epochs=1"});
  const auto expected = losses(dir_ / "whole", "step");
  EXPECT_EQ(expected.size(), 20u);
  for (const std::string setting :
       {"train.accumulate=4", "train.checkpoint_segments=2", "pipeline.copy=true"}) {
    train(setting, {setting, "train.epochs=1"});
    const auto found = losses(dir_ / setting, "step");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << setting;
  }
}

TEST_F(TokenRun, AResumedRunIsTheSame) {
  expect_same_after_resuming();
}

// 320 samples in batches of 21 leave 5. Not adamw, which would scale up rounding.
TEST_F(TokenRun, TwoRanksAreOne) {
  train("start", {"train.epochs=1"});  // initial weights would differ: the ranks are threads
  const Settings settings = {
      "train.epochs=1", "train.batch=21", "optimizer.name=sgd", "optimizer.lr=0.01",
      "model.weights=" + (dir_ / "start/checkpoints/step-00000020.safetensors")};
  const TrainResult one = train("one", settings);
  testing::run_ranks(2, [&](Group& group) {
    TrainerOptions own = options("two");
    own.group = std::shared_ptr<Group>(&group, [](Group*) {});
    Trainer(Env::posix(), recipe(settings), own).run();
  });
  expect_same_model("two", "one", 1e-4);
  EXPECT_NEAR(last("two").evaluation->metrics.loss, one.eval->loss, 1e-4);
  const auto expected = losses(dir_ / "one", "step"), found = losses(dir_ / "two", "step");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4);
}

TEST_F(TokenRun, TheBatchIsSearchedAndHalfPrecisionTrains) {
  EXPECT_GT(train("auto", {"train.batch=auto:32", "train.memory_gb=0.05", "train.epochs=1"}).steps,
            0);
  EXPECT_GT(train("bf16", {"precision.mode=bf16"}).eval->value("accuracy").value(), 0.9);
}

TEST_F(TokenRun, WindowsOfOneLengthTrainToo) {
  std::vector<uint8_t> x;
  for (int i = 0; i < 100 * 9; ++i) x.push_back(uint8_t((i / 9 + i % 9) % 11));
  testing::write_file(dir_ / "x.npy", testing::npy("|u1", "100, 9", testing::raw(x)));
  const std::string windows = "npy:" + (dir_ / "x.npy") + ",vocabulary=11";
  const TrainResult result =
      train("windows", {"data.source=" + windows, "data.eval_source=" + windows, "train.epochs=4"});
  EXPECT_GT(result.eval->value("accuracy").value(), 0.9);
}

TEST_F(TokenRun, WhatCannotBeTrainedIsRefused) {
  expect_refused({"data.source=npz:" + (dir_ / "a.npz") + ",lengths=n", "data.eval_source="},
                 "has no target", ",vocabulary=N");
  expect_refused({"model.name=mlp"}, "mlp does not take samples of varying length",
                 "model.name=gpt_tiny");
  expect_refused({"model.name=resnet18_1d"}, "resnet18_1d needs signals");
  expect_refused({"train.task=regress"}, "is of varying length", "train.task=language");
  expect_refused({"model.classes=10"}, "model.classes is 10, and the vocabulary has 11 tokens");
  expect_refused({"data.eval_source=" + source("b.npz", "12")}, "below 12");
  expect_refused({"data.source=" + source("b.npz"), "data.eval_source=" + source("a.npz")},
                 "samples have up to 29 tokens, and those of the training data 19", "context");
  const Error error = error_of([&] {
    train("wrong",
          {"data.source=" + source("a.npz", "10"), "data.eval_source=" + source("b.npz", "10")});
  });
  EXPECT_EQ(error.exit_code(), 3) << error.what();
  EXPECT_NE(error.reason().find("is 10, and the vocabulary has 10"), std::string::npos);
}

}  // namespace
}  // namespace saturate
