// An Evaluator: of a program's own recipe, and with a pipeline, which changes no batch.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/spans.h"
#include "run/setup.h"
#include "saturate/data/input.h"
#include "saturate/evaluator.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::small_recipe;

struct Evaluated {
  std::vector<Metrics> metrics;  // of two evaluations
  std::vector<at::Tensor> logits;
  std::set<std::string> threads;  // that a stage ran on
};

Evaluated evaluate_twice(const Recipe& recipe, int64_t give_up_after = -1) {
  const auto model =
      make_model(recipe.model, {recipe.model.classes, recipe.augment.size, Env::posix()});
  for (const auto& tensors : {model->parameters(), model->buffers()})
    for (const auto& named : tensors) testing::fill(named);
  Evaluator evaluator(Env::posix(), recipe, recipe.data.eval_source,
                      open_dataset(Env::posix(), recipe.data.eval_source)->classes(), at::kCPU);
  const auto task = make_task(recipe.train, recipe.model.classes, model->facets());
  Evaluated found;
  if (give_up_after >= 0) {
    const auto none = evaluator.run(
        *model, *task, [&](const DeviceBatch&, const at::Tensor&) { return --give_up_after > 0; });
    EXPECT_FALSE(none);
  }
  EXPECT_TRUE(start_spans());
  for (int again = 0; again < 2; ++again) {
    const auto metrics =
        evaluator.run(*model, *task, [&](const DeviceBatch& batch, const at::Tensor& logits) {
          EXPECT_EQ(batch.images.size(0), logits.size(0));
          found.logits.push_back(logits.clone());
          return true;
        });
    EXPECT_TRUE(metrics);
    found.metrics.push_back(*metrics);
  }
  for (const SpanTrack& track : stop_spans())
    for (const RecordedSpan& span : track.spans)
      if (span.name == std::string("copy") || span.name == std::string("augment"))
        found.threads.insert(track.thread);
  return found;
}

Recipe recipe_to_evaluate(const std::string& eval_source) {
  Recipe recipe = small_recipe();
  recipe.data.source = recipe.data.eval_source = eval_source;
  recipe.train.eval_batch = 8;
  if (eval_source.find("masks") != std::string::npos) {
    recipe.train.task = TaskKind::kSegment;
    recipe.model.name = "toy_seg";
  }
  resolve_machine(recipe, at::kCPU);
  return resolve_recipe(recipe, *open_dataset(Env::posix(), eval_source), at::kCPU);
}

// Without a Trainer: as a program writes it, with defaults.
TEST(Evaluator, AProgramsRecipeIsResolvedAsByARun) {
  Recipe recipe;
  recipe.model.name = "mlp";
  recipe.augment.size = 16;
  recipe.train.batch = 20;
  const std::string source = "synth:size=16,count=50";
  const auto classes = open_dataset(Env::posix(), source)->classes();
  const auto model = make_model(recipe.model, {int(classes.size()), 16, Env::posix()});
  Evaluator evaluator(Env::posix(), recipe, source, classes, at::kCPU);
  std::vector<int64_t> batches;
  const auto found =
      evaluator.run(*model, classification(), [&](const DeviceBatch& batch, const at::Tensor&) {
        batches.push_back(batch.count());
        return true;
      });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->samples, 50);
  EXPECT_EQ(batches, (std::vector<int64_t>{20, 20, 10}));
  recipe.train.batch = kAutomatic;
  const Error error =
      testing::error_of([&] { Evaluator(Env::posix(), recipe, source, classes, at::kCPU); });
  EXPECT_EQ(error.where(), "train.eval_batch");
}

TEST(Evaluator, APipelineReturnsTheSameBits) {
  for (const char* source : {"synth:size=16,count=43", "synth:size=16,count=43,masks=true"}) {
    const Recipe serial = recipe_to_evaluate(source);
    const Evaluated expected = evaluate_twice(serial);
    EXPECT_EQ(expected.threads, std::set<std::string>());
    ASSERT_EQ(expected.logits.size(), 12u);
    Recipe piped = serial;
    piped.pipeline.copy = Toggle::kOn;
    piped.pipeline.check = true;
    for (const bool augment : {false, true}) {
      SCOPED_TRACE(std::string(source) + (augment ? ", augment" : ""));
      piped.pipeline.augment = augment;
      piped.pipeline.encoder = augment;  // evaluation does not use it
      const Evaluated found = evaluate_twice(piped, /*give_up_after=*/augment ? 2 : -1);
      EXPECT_TRUE(found.threads.contains("copy"));
      EXPECT_EQ(found.threads.contains("augment"), augment);
      EXPECT_FALSE(found.threads.contains("encoder"));
      ASSERT_EQ(found.logits.size(), expected.logits.size());
      for (size_t i = 0; i < found.logits.size(); ++i)
        EXPECT_TRUE(found.logits[i].equal(expected.logits[i])) << i;
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(found.metrics[i].samples, 43);
        EXPECT_EQ(found.metrics[i].loss, expected.metrics[i].loss);
        EXPECT_EQ(found.metrics[i].value("accuracy"), expected.metrics[i].value("accuracy"));
      }
    }
  }
}

}  // namespace
}  // namespace saturate
