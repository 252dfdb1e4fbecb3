// Observers of a run, and objects that a program passes to it.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "run/checkpoint.h"
#include "saturate/data/dataset.h"
#include "saturate/module_model.h"
#include "saturate/optimizer.h"
#include "saturate/task.h"
#include "tests/data_testing.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::read_text;
using testing::saving_options;
using testing::TempDir;
using Lines = std::vector<std::string>;

// Records every call; stops the run after `stop_after` steps.
class Tape : public Observer {
 public:
  explicit Tape(int64_t stop_after = 0) : stop_after_(stop_after) {}
  void after_step(const StepEvent& event, ObserverContext& run) override {
    add("step", event.position.step);
    EXPECT_EQ(event.record_due, event.position.step % 2 == 0);
    EXPECT_GT(event.lr, 0);
    if (event.position.step == stop_after_) run.stop("it is enough");
  }
  void after_epoch(const EpochEvent& event, ObserverContext&) override {
    add("epoch", event.position.step);
    EXPECT_EQ(event.metrics.samples, 100);
  }
  void after_evaluation(const EvaluationEvent& event, ObserverContext&) override {
    add("evaluation", event.found.step);
    EXPECT_EQ(event.counts, event.found.step != stop_after_);
  }
  void at_end(const EndEvent& event, ObserverContext&) override {
    add("end", event.position.step);
    end = event.end;
  }
  void on_record(MetricsRecord& record, ObserverContext&) override {
    add("record of " + record.kind, record.step);
    EXPECT_TRUE(record.loss.has_value());
  }

  Lines lines;
  std::optional<RunEnd> end;

 private:
  void add(const std::string& what, int64_t step) {
    lines.push_back(fmt::format("{} {}", what, step));
  }
  const int64_t stop_after_;
};

Recipe observed_recipe() {
  Recipe recipe = testing::small_recipe("[watch]\nevery = 2\ntelemetry_hz = 0\n");
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  return recipe;
}

TrainerOptions observed_by(std::shared_ptr<Observer> observer, const std::string& out) {
  TrainerOptions options = saving_options(out);
  options.observers = {std::move(observer)};
  return options;
}

std::vector<nlohmann::json> records_in(const std::string& folder, const std::string& kind) {
  std::istringstream lines(read_text(folder + "/metrics.jsonl"));
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(lines, line);)
    if (auto json = nlohmann::json::parse(line); json["kind"] == kind)
      found.push_back(std::move(json));
  return found;
}

Checkpoint last_of(const std::string& folder) {
  return find_checkpoint(Env::posix(), folder,
                         [](const std::string& text) { ADD_FAILURE() << text; });
}

at::Tensor fc_weight(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (name == "fc.weight") return tensor.detach();
  ADD_FAILURE() << "no fc.weight";
  return {};
}

TEST(Observers, AreCalledInOrder) {
  const TempDir dir;
  const auto tape = std::make_shared<Tape>();
  Trainer(Env::posix(), observed_recipe(), observed_by(tape, dir / "run")).run();
  EXPECT_EQ(tape->lines, (Lines{"step 1",
                                "step 2",
                                "record of step 2",
                                "step 3",
                                "step 4",
                                "record of step 4",
                                "epoch 4",
                                "record of epoch 4",
                                "evaluation 4",
                                "record of eval 4",
                                "step 5",
                                "step 6",
                                "record of step 6",
                                "step 7",
                                "step 8",
                                "record of step 8",
                                "epoch 8",
                                "record of epoch 8",
                                "evaluation 8",
                                "record of eval 8",
                                "end 8",
                                "record of end 8"}));
  EXPECT_EQ(tape->end, RunEnd::kDone);
}

TEST(Observers, AStopSavesAndAResumeRepeatsNoEvent) {
  const TempDir dir;
  const auto whole = std::make_shared<Tape>(), stopped = std::make_shared<Tape>(3),
             rest = std::make_shared<Tape>();
  Trainer(Env::posix(), observed_recipe(), observed_by(whole, dir / "whole")).run();
  const TrainResult found =
      Trainer(Env::posix(), observed_recipe(), observed_by(stopped, dir / "run")).run();
  EXPECT_EQ(found.end, RunEnd::kStopped);
  EXPECT_EQ(found.stopped_by, "it is enough");
  EXPECT_EQ(found.steps, 3);
  EXPECT_NE(format_summary(found).find("stopped by an observer at step 3: it is enough\n"),
            std::string::npos);
  EXPECT_EQ(stopped->lines,
            (Lines{"step 1", "step 2", "record of step 2", "step 3", "evaluation 3",
                   "record of eval 3", "record of step 3", "end 3", "record of end 3"}));
  EXPECT_EQ(stopped->end, RunEnd::kStopped);
  EXPECT_EQ(last_of(dir / "run").position.step, 3);

  TrainerOptions options = observed_by(rest, dir / "run");
  options.resume = dir / "run";
  EXPECT_EQ(Trainer(Env::posix(), observed_recipe(), options).run().end, RunEnd::kDone);
  EXPECT_EQ(rest->lines, Lines(std::ranges::find(whole->lines, "step 4"), whole->lines.end()));
}

TEST(Observers, AStopOnOneRankEndsAll) {
  struct Stopper : Observer {
    void after_step(const StepEvent& event, ObserverContext& run) override {
      if (run.rank() == 1 && event.position.step == 2) run.stop("it is enough");
    }
  };
  const TempDir dir;
  Recipe recipe = observed_recipe();
  recipe.distributed.timeout_s = 30;
  std::vector<TrainResult> found(2);
  testing::run_ranks(
      2,
      [&](Group& group) {
        TrainerOptions options = observed_by(std::make_shared<Stopper>(), dir / "run");
        options.group = std::shared_ptr<Group>(&group, [](Group*) {});
        found[size_t(group.rank())] = Trainer(Env::posix(), recipe, options).run();
      },
      recipe.distributed);
  for (const TrainResult& each : found) {
    EXPECT_EQ(each.end, RunEnd::kStopped);
    EXPECT_EQ(each.steps, 3) << "after the next step";
  }
  EXPECT_EQ(found[0].stopped_by, "an observer of another rank");
  EXPECT_EQ(found[1].stopped_by, "it is enough");
  EXPECT_EQ(last_of(dir / "run").position.step, 3);
}

class Logger : public Observer {
 public:
  void after_step(const StepEvent& event, ObserverContext& run) override {
    run.log("seen", double(event.position.step));
  }
  void after_epoch(const EpochEvent&, ObserverContext& run) override { run.log("ratio", NAN); }
  void after_evaluation(const EvaluationEvent& event, ObserverContext& run) override {
    run.log("half_loss", event.found.metrics.loss / 2);
  }
  void at_end(const EndEvent&, ObserverContext& run) override { run.log("my/score", 7); }
  void on_record(MetricsRecord& record, ObserverContext& run) override {
    run.log("kind_length", double(record.kind.size()));
  }
};

TEST(Observers, ScalarsAreInTheRecordAndInTensorBoard) {
  const TempDir dir;
  const std::string run = dir / "run";
  Trainer(Env::posix(), observed_recipe(), observed_by(std::make_shared<Logger>(), run)).run();
  const auto steps = records_in(run, "step"), epochs = records_in(run, "epoch"),
             evaluations = records_in(run, "eval"), ends = records_in(run, "end");
  ASSERT_EQ(steps.size(), 4u);
  for (const auto& record : steps) {
    EXPECT_EQ(record["seen"], record["step"]) << "the last value counts";
    EXPECT_EQ(record["kind_length"], 4);
  }
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_TRUE(epochs[0].contains("ratio") && epochs[0]["ratio"].is_null());
  EXPECT_FALSE(epochs[0].contains("seen"));
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[1]["half_loss"].get<double>(), evaluations[1]["loss"].get<double>() / 2);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0]["my/score"], 7);
  const auto files = Env::posix().list(run + "/tb");
  ASSERT_EQ(files.size(), 1u);
  const std::string events = read_text(run + "/tb/" + files[0].name);
  for (const char* tag : {"seen/train", "ratio/epoch", "half_loss/eval", "my/score/end"})
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
}

TEST(Observers, CannotLogKeysOfRecords) {
  struct Clash : Observer {
    explicit Clash(std::string name) : scalar(std::move(name)) {}
    void after_step(const StepEvent&, ObserverContext& run) override { run.log(scalar, 1); }
    const std::string scalar;
  };
  for (const std::string key : {"", "loss", "mean_iou", "gpu_busy"}) {
    const TempDir dir;
    const auto options = observed_by(std::make_shared<Clash>(key), dir / "run");
    const Error error = error_of([&] { Trainer(Env::posix(), observed_recipe(), options).run(); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.reason().find("a scalar cannot be named \"" + key + "\""), std::string::npos)
        << error.reason();
  }
}

TEST(Observers, AFailureNamesTheObserver) {
  struct Unlucky : Observer {
    std::string name() const override { return "Luck"; }
    void after_epoch(const EpochEvent&, ObserverContext&) override {
      throw std::runtime_error("no luck\nwith a backtrace");
    }
  };
  EXPECT_NE(Tape().name().find("Tape"), std::string::npos);
  const TempDir dir;
  Trainer trainer(Env::posix(), observed_recipe(),
                  observed_by(std::make_shared<Unlucky>(), dir / "run"));
  const Error error = error_of([&] { trainer.run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.reason(), "the observer Luck failed at step 4: no luck");
  EXPECT_EQ(trainer.so_far().end, RunEnd::kFailed);
}

// ---- Objects
// -------------------------------------------------------------------------------------

class CountedImages : public Dataset {
 public:
  explicit CountedImages(const std::string& uri) : source_(open_dataset(Env::posix(), uri)) {}
  size_t size() const override { return source_->size(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  void read(size_t index, Sample& out) const override {
    ++reads;
    source_->read(index, out);
  }
  mutable std::atomic<int> reads = 0;

 private:
  const std::unique_ptr<Dataset> source_;
};

class OneLayer : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) { return fc_(images.flatten(1)); }

 private:
  torch::nn::Linear fc_ = register_module("fc", torch::nn::Linear(3 * 16 * 16, 10));
};

class ObjectsTest : public ::testing::Test {
 protected:
  ObjectsTest() {
    recipe.data.source.clear();
    recipe.data.eval_source.clear();
    options = saving_options(run);
    options.model = model = make_module_model<OneLayer>();
    options.dataset = images;
    options.eval_dataset = held_out;
    options.optimizer = [this](std::vector<ParameterGroup> groups) {
      ++optimizers;
      return make_optimizer(OptimizerOptions(), std::move(groups));
    };
    options.schedule = [](int64_t step) { return step < 4 ? 0.5 : 0.25; };
  }

  const TempDir dir;
  const std::string run = dir / "run";
  Recipe recipe = observed_recipe();
  TrainerOptions options;
  std::shared_ptr<Model> model;
  std::shared_ptr<CountedImages> images =
                                     std::make_shared<CountedImages>("synth:size=16,count=100"),
                                 held_out = std::make_shared<CountedImages>(
                                     "synth:size=16,count=50,split=test");
  int optimizers = 0;
};

TEST_F(ObjectsTest, AreTrainedAndRead) {
  const at::Tensor before = fc_weight(model->parameters()).clone();
  Trainer trainer(Env::posix(), recipe, options);
  const TrainResult result = trainer.run();
  EXPECT_EQ(&trainer.model(), model.get());
  const at::Tensor after = fc_weight(model->parameters());
  EXPECT_FALSE(at::equal(before, after));
  EXPECT_TRUE(at::equal(after, fc_weight(last_of(run).model))) << "the run's last weights";
  EXPECT_GE(images->reads, 200);
  EXPECT_GE(held_out->reads, 100);
  EXPECT_EQ(result.eval.value().samples, 50);
  EXPECT_EQ(optimizers, 1);
  const auto steps = records_in(run, "step");
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_DOUBLE_EQ(steps[0]["lr"].get<double>(), recipe.optimizer.lr * 0.5);
  EXPECT_DOUBLE_EQ(steps[3]["lr"].get<double>(), recipe.optimizer.lr * 0.25);
  EXPECT_EQ(trainer.recipe().data.source, "own:");
  EXPECT_EQ(trainer.recipe().model.name, "own");
}

class Fourfold : public Task {
 public:
  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double smoothing) const override {
    return 4 * classification().mean_loss(outputs, labels, smoothing);
  }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    return classification().sums(loss, outputs, labels);
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    return classification().metrics(sums, samples);
  }
};

TEST_F(ObjectsTest, ATaskComputesTheLossOfTrainingAndEvaluation) {
  recipe.optimizer.lr = 0;
  const TrainResult plain = Trainer(Env::posix(), recipe, options).run();
  options.out = dir / "fourfold";
  options.task = std::make_shared<Fourfold>();
  const TrainResult fourfold = Trainer(Env::posix(), recipe, options).run();
  EXPECT_FLOAT_EQ(fourfold.train.value().loss, 4 * plain.train.value().loss);
  EXPECT_FLOAT_EQ(fourfold.eval.value().loss, 4 * plain.eval.value().loss);
}

TEST_F(ObjectsTest, MustBeGivenAgainToResume) {
  recipe.train.epochs = 1;
  Trainer(Env::posix(), recipe, options).run();
  Recipe stored = load_recipe(Env::posix(), run + "/recipe.toml");
  stored.train.epochs = 2;
  TrainerOptions again = options;
  again.resume = run;
  for (const auto& [key, forget] : std::vector<std::pair<std::string, void (*)(TrainerOptions&)>>{
           {"data.source", [](TrainerOptions& less) { less.dataset = nullptr; }},
           {"model.name", [](TrainerOptions& less) { less.model = nullptr; }},
           {"optimizer.name", [](TrainerOptions& less) { less.optimizer = nullptr; }},
           {"schedule.name", [](TrainerOptions& less) { less.schedule = nullptr; }}}) {
    TrainerOptions less = again;
    forget(less);
    const Error error = error_of([&] { Trainer(Env::posix(), stored, less); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), key);
    EXPECT_EQ(error.reason(), "it is an object of the program that trained");
  }
  again.model = make_module_model<OneLayer>();  // its weights are the checkpoint's
  EXPECT_EQ(Trainer(Env::posix(), stored, again).run().steps, 8);
  EXPECT_EQ(records_in(run, "step").size(), 4u);
}

TEST_F(ObjectsTest, TheModelEndsWithItsAverage) {
  recipe.train.ema = 0.5;
  Trainer(Env::posix(), recipe, options).run();
  EXPECT_TRUE(at::equal(fc_weight(model->parameters()), fc_weight(last_of(run).average)));
}

TEST_F(ObjectsTest, AreRefusedIfOnlyANameIsPossible) {
  const auto refused = [&](const std::function<void(Recipe&)>& change) {
    Recipe changed = recipe;
    change(changed);
    return error_of([&] { Trainer(Env::posix(), changed, options); }).where();
  };
  EXPECT_EQ(refused([](Recipe& to) { to.train.batch = kAutomatic; }), "train.batch=auto");
  EXPECT_EQ(refused([](Recipe& to) { to.train.compiled = "package.so"; }), "train.compiled");
  EXPECT_EQ(refused([](Recipe& to) { to.model.file = "model.pt"; }), "model.file");
  EXPECT_EQ(refused([](Recipe& to) { to.precision.mode = PrecisionMode::kBf16O2; }),
            "precision.mode=bf16-o2");
}

}  // namespace
}  // namespace saturate
