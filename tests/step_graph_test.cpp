// A step captured and replayed, with the CPU version of a graph: the calls of the graph and their
// order, and the memory that a replay reads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <memory>

#include "saturate/data/error.h"
#include "step/graphed_step.h"
#include "tests/closure_graph.h"
#include "tests/data_testing.h"
#include "trace/device_phases.h"

namespace saturate {
namespace {

constexpr int64_t kBatch = 6;

class Linear : public Model {
 public:
  explicit Linear(const at::Tensor& initial) : weight(initial.clone().requires_grad_()) {}
  at::Tensor forward(const at::Tensor& images) override {
    seen.push_back(images.const_data_ptr());
    return at::linear(images.flatten(1), weight);
  }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {{"weight", weight}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

  at::Tensor weight;
  std::vector<const void*> seen;  // the addresses of each forward's images
};

// Records the calls.
class LoggedGraph : public StepGraph {
 public:
  explicit LoggedGraph(std::string& log) : log_(log) {}
  void warm_up(const std::function<void()>& body) override {
    log_ += 'w';
    twin_->warm_up(body);
  }
  void capture(const std::function<void()>& body) override {
    log_ += 'c';
    twin_->capture(body);
  }
  void replay() override {
    log_ += 'r';
    twin_->replay();
  }

 private:
  std::string& log_;
  const std::unique_ptr<StepGraph> twin_ = make_closure_graph();
};

// Runs the host's part of the captured work, as CUDA does.
class HostGraph : public StepGraph {
 public:
  void warm_up(const std::function<void()>& body) override { body(); }
  void capture(const std::function<void()>& body) override { body(); }
  void replay() override { ADD_FAILURE() << "nothing was recorded"; }
};

DeviceBatch batch_of(int seed, int64_t count = kBatch, int64_t side = 2) {
  at::manual_seed(uint64_t(seed));
  DeviceBatch batch;
  batch.images = at::randn({count, 3, side, side});
  batch.labels = (at::arange(count) + seed) % 4;
  return batch;
}

struct Bench {
  explicit Bench(const StepOptions& options = {},
                 std::function<std::unique_ptr<StepGraph>()> make = {}) {
    at::manual_seed(1);
    model = std::make_unique<Linear>(at::randn({4, 12}));
    OptimizerOptions sgd;
    optimizer = make_optimizer(sgd, make_parameter_groups(sgd, model->parameters()));
    step = std::make_unique<TrainStep>(*model, classification(), *optimizer, options, ledger);
    if (!make) make = [this] { return std::make_unique<LoggedGraph>(log); };
    graphed = std::make_unique<GraphedStep>(*step, *optimizer, at::kCPU, ledger,
                                            GraphSetup{kBatch, make, [](DeviceBatch&) {}});
  }
  void run(DeviceBatch batch, double lr = 0.1) { graphed->run(batch, lr, metrics); }
  at::Tensor weight() const { return model->weight.detach().clone(); }

  Ledger ledger{Env::posix()};
  std::string log;
  std::unique_ptr<Linear> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<GraphedStep> graphed;
  RunningMetrics metrics{classification()};
};

TEST(GraphedStep, WarmsUpCapturesOnceAndReplays) {
  Bench bench;
  for (int i = 0; i < 6; ++i) bench.run(batch_of(i));
  EXPECT_EQ(bench.log, "wwwcrrr");
  EXPECT_EQ(bench.graphed->recorded(), 1);
  EXPECT_EQ(bench.graphed->replayed(), 3);
  EXPECT_EQ(bench.graphed->steps(), 6);
}

// As on a device: a replay runs no host code.
class SilentGraph : public StepGraph {
 public:
  explicit SilentGraph(std::string& log) : log_(log) {}
  void warm_up(const std::function<void()>& body) override { body(); }
  void capture(const std::function<void()>& body) override {
    log_ += "c";
    body();
  }
  void replay() override { log_ += "r"; }

 private:
  std::string& log_;
};

// A mark inside a capture has no time.
class NoTimeMark : public TimeMark {
 public:
  explicit NoTimeMark(std::string& log) : log_(log) {}
  void place() override { log_ += "m"; }
  bool reached() const override { return false; }
  double seconds_since(const TimeMark&) const override { return 0; }

 private:
  std::string& log_;
};

TEST(GraphedStep, NoPhaseMarkIsCaptured) {
  std::string log;
  Bench bench({}, [&log] { return std::make_unique<SilentGraph>(log); });
  DevicePhases phases([&] { return std::make_unique<NoTimeMark>(log); });
  bench.ledger.time_on(&phases);
  for (int i = 0; i < 3; ++i) bench.run(batch_of(i));
  log.clear();
  bench.run(batch_of(3));
  EXPECT_EQ(log, "mmcrm") << "copy, forward with the whole graph, host";
  log.clear();
  bench.run(batch_of(4));
  EXPECT_EQ(log, "mmrm");
}

// A capture records addresses, so each step's data must be there: batches arrive in other memory
// each time.
TEST(GraphedStep, EveryStepReadsTheSameMemory) {
  Bench bench;
  std::vector<DeviceBatch> batches;
  for (int i = 0; i < 6; ++i) batches.push_back(batch_of(i));
  for (const DeviceBatch& batch : batches) bench.run(batch);
  ASSERT_EQ(bench.model->seen.size(), 6u);
  for (const void* images : bench.model->seen) EXPECT_EQ(images, bench.model->seen.front());
  for (const DeviceBatch& batch : batches)
    EXPECT_NE(batch.images.const_data_ptr(), bench.model->seen.front());
}

TEST(GraphedStep, UsesTheRateAndTheBatchOfEachStep) {
  Bench bench, plain;
  for (int i = 0; i < 8; ++i) {
    DeviceBatch batch = batch_of(i);
    const double lr = 0.3 / (1 + i);
    bench.run(batch, lr);
    plain.optimizer->read_rate_from({});
    plain.step->run(batch, lr, plain.metrics);
    ASSERT_TRUE(at::equal(bench.weight(), plain.weight())) << i;
  }
  const Metrics found = bench.metrics.read(), expected = plain.metrics.read();
  EXPECT_EQ(found.samples, expected.samples);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.value("accuracy"), expected.value("accuracy"));
}

TEST(GraphedStep, ASmallerBatchUsesTheEagerStep) {
  Bench bench;
  for (int i = 0; i < 4; ++i) bench.run(batch_of(i));
  const at::Tensor before = bench.weight();
  bench.run(batch_of(4, kBatch - 1));
  EXPECT_FALSE(at::equal(bench.weight(), before));
  EXPECT_EQ(bench.log, "wwwcr");
  bench.run(batch_of(5));
  EXPECT_EQ(bench.log, "wwwcrr");
  EXPECT_EQ(bench.metrics.read().samples, 6 * kBatch - 1);
}

// [6, 3, 2, 2], [6, 12, 1, 1] and [6, 1, 12, 1]: equal for the model.
DeviceBatch reshaped(int seed, at::IntArrayRef shape) {
  DeviceBatch batch = batch_of(seed);
  batch.images = batch.images.reshape(shape);
  return batch;
}

TEST(GraphedStep, AnotherShapeIsCapturedTooAndAThirdEndsIt) {
  Bench bench;
  for (int i = 0; i < 5; ++i) bench.run(batch_of(i));
  for (int i = 0; i < 5; ++i) bench.run(reshaped(i, {kBatch, 12, 1, 1}));
  EXPECT_EQ(bench.log, "wwwcrrwwwcrr");
  bench.run(batch_of(7));
  EXPECT_EQ(bench.log, "wwwcrrwwwcrrr") << "the first graph still exists";
  EXPECT_EQ(bench.graphed->failure(), "");
  const at::Tensor before = bench.weight();
  bench.run(reshaped(8, {kBatch, 1, 12, 1}));
  EXPECT_NE(bench.graphed->failure().find("shape"), std::string::npos);
  bench.run(batch_of(9));
  EXPECT_EQ(bench.log, "wwwcrrwwwcrrr");
  EXPECT_FALSE(at::equal(bench.weight(), before));
}

// With sizes by epoch each size replaces the graphs of the one before it.
TEST(GraphedStep, AnotherSizeOfEpochsDropsTheGraphsAndIsCaptured) {
  Bench bench;
  GraphSetup setup{kBatch, [&] { return std::make_unique<LoggedGraph>(bench.log); },
                   [](DeviceBatch&) {}, /*changes_size=*/true};
  bench.graphed.reset();
  bench.graphed = std::make_unique<GraphedStep>(*bench.step, *bench.optimizer, at::kCPU,
                                                bench.ledger, std::move(setup));
  int seed = 0;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {kBatch, 3, 2, 2}, {kBatch, 12, 1, 1}, {kBatch, 1, 12, 1}, {kBatch, 1, 3, 4}})
    for (int i = 0; i < 5; ++i) bench.run(reshaped(++seed, shape));
  EXPECT_EQ(bench.log, "wwwcrrwwwcrrwwwcrrwwwcrr");
  EXPECT_EQ(bench.graphed->failure(), "");
  EXPECT_EQ(bench.graphed->recorded(), 4);
}

// Changes that the host made before the failure (gradients that are set, a scaler that waits for
// its update) must not affect the eager step that replaces it.
TEST(GraphedStep, AStepWhoseCaptureFailsLeavesNoTrace) {
  const StepOptions half{.precision = {.mode = PrecisionMode::kFp16}, .micro_batch = 3};
  Bench broken(half, [] { return std::make_unique<HostGraph>(); }), plain(half);
  plain.optimizer->read_rate_from({});
  int updates = 0;
  broken.step->observe_gradients([&] {
    if (++updates == 4) fail(ErrorKind::kRun, "the host wants a number", "here", "Wait");
  });
  for (int i = 0; i < 7; ++i) {
    DeviceBatch batch = batch_of(i);
    broken.run(batch);
    plain.step->run(batch, 0.1, plain.metrics);
    ASSERT_TRUE(at::equal(broken.weight(), plain.weight())) << i;
  }
  EXPECT_NE(broken.graphed->failure().find("the host wants a number"), std::string::npos);
  EXPECT_EQ(broken.graphed->replayed(), 0);
  EXPECT_EQ(broken.metrics.read().samples, 7 * kBatch);
}

TEST(GraphedStep, AnOptimizerThatNeedsTheRateOnTheHostIsRefused) {
  Bench bench;
  OptimizerOptions muon;
  muon.name = "muon";
  const auto optimizer =
      make_optimizer(muon, make_parameter_groups(muon, bench.model->parameters()));
  const Error error = testing::error_of([&] {
    GraphedStep(*bench.step, *optimizer, at::kCPU, bench.ledger,
                GraphSetup{kBatch, make_closure_graph, [](DeviceBatch&) {}});
  });
  EXPECT_NE(std::string(error.what()).find("train.graph"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
