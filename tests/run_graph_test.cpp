// Whole runs with train.graph, with the CPU version of a CUDA graph, compared with eager runs.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>

#include "run/checkpoint.h"
#include "saturate/trainer.h"
#include "step/graphed_step.h"
#include "tests/app_testing.h"
#include "tests/closure_graph.h"

namespace saturate {
namespace {

using testing::TempDir;

// Five steps an epoch, of which the last has half as many images; 25 steps.
constexpr const char* kRecipe =
    "seed = 5\n[data]\nsource = \"synth:size=16,count=90,classes=3\"\nthreads = 1\n"
    "[augment]\ncrop = \"pad:2\"\n[model]\nname = \"resnet9\"\nwidth = 0.0625\n"
    "[optimizer]\nlr = 0.05\n[schedule]\nwarmup_epochs = 1\n"
    "[train]\nbatch = 20\nepochs = 5\nthreads = 1\ndevice = \"cpu\"\n"
    "[checkpoint]\nkeep_best = false\n[watch]\nevery = 1\n";

Recipe recipe_with(const std::vector<std::string>& overrides) {
  return parse_recipe(kRecipe, "test", overrides);
}

struct Found {
  std::vector<double> losses;  // of each step
  Checkpoint end;
  std::string graph;
};

Found run_of(const std::string& out, std::vector<std::string> overrides,
             std::function<std::unique_ptr<StepGraph>()> make = {}) {
  if (make) overrides.push_back("train.graph=auto");
  TrainerOptions options;
  options.out = out;
  options.progress = Progress::Style::kSilent;
  options.make_graph = std::move(make);
  Found found;
  found.graph = Trainer(Env::posix(), recipe_with(overrides), options).run().graph;
  found.losses = testing::losses(out, "step");
  found.end = find_checkpoint(Env::posix(), out, [](const std::string&) {});
  return found;
}

void expect_equal(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].tensor.equal(expected[i].tensor)) << found[i].name;
}

void expect_equal(const Found& found, const Found& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  expect_equal(found.end.model, expected.end.model);
  expect_equal(found.end.optimizer, expected.end.optimizer);
  expect_equal(found.end.scaler, expected.end.scaler);
  expect_equal(found.end.average, expected.end.average);
  expect_equal(found.end.random, expected.end.random);
}

struct Case {
  const char* name;
  std::vector<std::string> settings;
  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }
};

class GraphedRun : public ::testing::TestWithParam<Case> {};

TEST_P(GraphedRun, EqualsTheEagerOneBitForBit) {
  const TempDir dir;
  const Found plain = run_of(dir / "plain", GetParam().settings);
  const Found graphed = run_of(dir / "graphed", GetParam().settings, make_closure_graph);
  ASSERT_EQ(plain.losses.size(), 25u);
  EXPECT_NE(plain.losses[3], plain.losses[24]) << "this shows nothing otherwise";
  expect_equal(graphed, plain);
  EXPECT_EQ(plain.graph, "");
  // 20 full batches, of which three warm up.
  EXPECT_EQ(graphed.graph, "17 of 25 steps replayed");
}

INSTANTIATE_TEST_SUITE_P(
    Settings, GraphedRun,
    ::testing::Values(
        Case{"Sgd", {"train.label_smoothing=0.1", "optimizer.layer_decay=0.9"}},
        Case{"HeldImages", {"data.cache=device", "augment.rotate=20", "augment.contrast=0.4"}},
        Case{
            "HeldPhotographs",
            {"data.cache=device:decoded", "augment.crop=random_resized", "augment.brightness=0.3"}},
        Case{"AccumulatedAdamw",
             {"optimizer.name=adamw", "optimizer.lr=0.003", "train.accumulate=2",
              "train.clip_norm=0.5", "train.ema=0.9"}},
        Case{"AdamWithKeptGradients",
             {"optimizer.name=adam", "optimizer.lr=0.003", "debug.off=set_to_none"}},
        Case{"ScaledHalf",
             {"precision.mode=fp16", "precision.loss_scale=[16777216, 3]", "model.name=simple_cnn",
              "model.width=0.25"}},
        Case{"Masters", {"precision.mode=bf16-o2", "model.name=simple_cnn", "model.width=0.25"}},
        Case{"Dropout", {"model.name=mobilenet_v2", "model.width=0.25", "model.dropout=0.5"}},
        Case{"Pipeline",
             {"pipeline.copy=true", "debug.checks=streams", "data.cache=device",
              "augment.brightness=0.3"}},
        Case{"WholePipeline", {"pipeline.copy=true", "pipeline.augment=true"}},
        Case{"Evaluations",
             {"data.eval_source=synth:size=16,count=20,classes=3,split=test", "train.ema=0.8",
              "train.eval_every=[\"1 epoch\", \"3 steps\"]"}},
        Case{"Masks",
             {"data.source=synth:size=16,count=90,classes=2,masks=true", "train.task=segment",
              "model.name=toy_seg", "model.width=0.25", "train.accumulate=2"}},
        Case{"FrozenEncoder",
             {"data.source=synth:size=16,count=90,classes=2,masks=true", "train.task=segment",
              "model.name=unet", "optimizer.freeze=[\"encoder.*\"]", "pipeline.encoder=true",
              "optimizer.freeze_statistics=true", "augment.rotate=10"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(GraphedRunEnds, AResumedOneEqualsTheEagerOne) {
  const TempDir dir;
  const Found plain = run_of(dir / "plain", {});
  TrainerOptions first;
  first.out = dir / "run";
  first.progress = Progress::Style::kSilent;
  first.make_graph = make_closure_graph;
  TrainerOptions second = first;
  int polls = 0;
  first.should_stop = [&] { return ++polls > 12; };
  second.resume = dir / "run";
  const Recipe recipe = recipe_with({"train.graph=auto"});
  Trainer(Env::posix(), recipe, first).run();
  const TrainResult result = Trainer(Env::posix(), recipe, second).run();
  EXPECT_GT(result.steps_here, 5);
  EXPECT_LT(result.steps_here, 25);
  EXPECT_NE(result.graph.find("steps replayed"), std::string::npos) << result.graph;
  EXPECT_EQ(testing::losses(dir / "run", "step"), plain.losses);
}

// The capture finds that the step cannot be captured.
class RefusedGraph : public StepGraph {
 public:
  void warm_up(const std::function<void()>& body) override { body(); }
  void capture(const std::function<void()>&) override {
    TORCH_CHECK(false, "operation not permitted when stream is capturing\nand a page of advice");
  }
  void replay() override { ADD_FAILURE() << "nothing was recorded"; }
};

TEST(GraphedRunEnds, AStepThatCannotBeCapturedFallsBackToEagerAndSaysWhy) {
  const TempDir dir;
  const std::vector<std::string> settings = {"data.cache=device", "augment.rotate=20"};
  const Found plain = run_of(dir / "plain", settings);
  const Found refused =
      run_of(dir / "refused", settings, [] { return std::make_unique<RefusedGraph>(); });
  expect_equal(refused, plain);
  EXPECT_EQ(refused.graph,
            "0 of 25 steps replayed, then the eager step: operation not permitted when stream is "
            "capturing");
}

TEST(GraphedRunEnds, OnACpuTheRunIsEagerAndSaysSo) {
  const TempDir dir;
  const Found plain = run_of(dir / "plain", {});
  const Found asked = run_of(dir / "asked", {"train.graph=auto"});
  expect_equal(asked, plain);
  EXPECT_EQ(asked.graph, "not used: the run is on a CPU");
}

TEST(GraphedRunEnds, UnsupportedSettingsAreNotTried) {
  const TempDir dir;
  const Found found = run_of(dir / "run", {"train.epochs=2", "optimizer.name=muon"},
                             []() -> std::unique_ptr<StepGraph> {
                               ADD_FAILURE() << "it was tried";
                               return make_closure_graph();
                             });
  EXPECT_NE(found.graph.find("not used: the optimizer takes its learning rate from the host"),
            std::string::npos)
      << found.graph;
}

TEST(WhyNoGraph, NamesTheSetting) {
  const auto why = [](const std::vector<std::string>& settings, int processes = 1) {
    return why_no_graph(recipe_with(settings), processes);
  };
  EXPECT_EQ(why({}), "");
  EXPECT_EQ(why({"optimizer.name=adamw", "precision.mode=fp16-o2", "train.accumulate=2",
                 "train.clip_norm=1", "data.cache=device", "pipeline.copy=true"}),
            "");
  EXPECT_EQ(
      why({"schedule.name=onecycle", "schedule.warmup_epochs=0", "schedule.cycle_momentum=false"}),
      "");
  EXPECT_NE(why({}, 2).find("several processes"), std::string::npos);
  for (const char* setting :
       {"distributed.mode=dp", "debug.checks=anomaly", "train.checkpoint_segments=2",
        "debug.off=create_on_device", "watch.histograms=5", "augment.mixup=0.2", "augment.cutmix=1",
        "debug.off=fused", "train.compiled=a.pt2"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find('='));
    EXPECT_NE(why({setting}).find(key), std::string::npos) << setting << ": " << why({setting});
  }
  EXPECT_NE(
      why({"schedule.name=onecycle", "schedule.warmup_epochs=0"}).find("schedule.cycle_momentum"),
      std::string::npos);
  for (const char* name : {"lars", "lamb", "rmsprop", "muon"})
    EXPECT_NE(why({std::string("optimizer.name=") + name}).find("learning rate"), std::string::npos)
        << name;
}

}  // namespace
}  // namespace saturate
