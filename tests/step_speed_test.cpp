// The switches in debug.off: the effect of each.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <memory>
#include <thread>

#include "saturate/data/error.h"
#include "saturate/memory.h"
#include "saturate/train_step.h"
#include "step/switches.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

// Logits are a linear map of the pixels, followed by `tail`.
class SmallModel : public Model {
 public:
  explicit SmallModel(at::Tensor initial) : weight(initial.requires_grad_()) {}
  at::Tensor forward(const at::Tensor& images) override {
    ++forwards;
    return tail(at::linear(images.contiguous().flatten(1), weight));
  }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {{"weight", weight}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  ModelFacets facets() override {
    ModelFacets facets;
    facets.stages = chain;
    return facets;
  }
  void to(const at::Device&, bool) override {}

  at::Tensor weight;
  std::function<at::Tensor(const at::Tensor&)> tail = [](const at::Tensor& x) { return x; };
  std::vector<Stage> chain;
  int forwards = 0;
};

// A step over a batch of eight images of four classes.
struct Bench {
  explicit Bench(const StepOptions& options = {}, const OptimizerOptions& optimizer_options = {},
                 std::vector<Stage> (*stages)(SmallModel&) = nullptr)
      : ledger(Env::posix()) {
    at::manual_seed(1);
    model = std::make_unique<SmallModel>(at::randn({4, 12}));
    if (stages) model->chain = stages(*model);
    batch.images = at::randn({8, 3, 2, 2});
    batch.labels = at::arange(8) % 4;
    optimizer = make_optimizer(optimizer_options,
                               make_parameter_groups(optimizer_options, model->parameters()));
    step = std::make_unique<TrainStep>(*model, classification(), *optimizer, options, ledger);
  }
  void run() { step->run(batch, 0.1, running); }

  Ledger ledger;
  std::unique_ptr<SmallModel> model;
  DeviceBatch batch;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<TrainStep> step;
  RunningMetrics running{classification()};
};

OptimizerOptions gradients_set_to(bool none) {
  OptimizerOptions options;
  options.set_to_none = none;
  return options;
}

TEST(Speed, GradientsAreSetToNoneOrZeroedInPlace) {
  Bench none, zeroed({}, gradients_set_to(false));
  for (Bench* bench : {&none, &zeroed}) bench->run();
  EXPECT_FALSE(none.model->weight.grad().defined());
  const at::Tensor gradient = zeroed.model->weight.grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_FALSE(gradient.any().item<bool>());
  for (Bench* bench : {&none, &zeroed}) bench->run();
  EXPECT_TRUE(zeroed.model->weight.grad().is_same(gradient)) << "the same memory, again";
  EXPECT_TRUE(at::equal(none.model->weight, zeroed.model->weight));
}

TEST(Speed, HalfPrecisionWeightsKeepZeroedGradientsToo) {
  const auto weights = [](bool set_to_none) {
    const OptimizerOptions options = gradients_set_to(set_to_none);
    at::manual_seed(2);
    SmallModel model(at::randn({4, 12}));
    const auto optimizer = make_optimizer(
        options, make_parameter_groups(options, model.parameters()), PrecisionMode::kBf16O2);
    Ledger ledger(Env::posix());
    TrainStep step(model, classification(), *optimizer,
                   {.precision = {.mode = PrecisionMode::kBf16O2}, .micro_batch = 3}, ledger);
    DeviceBatch batch{at::randn({8, 3, 2, 2}), at::arange(8) % 4, {}};
    RunningMetrics running(classification());
    for (int i = 0; i < 3; ++i) step.run(batch, 0.1, running);
    EXPECT_EQ(model.weight.grad().defined(), !set_to_none);
    return model.weight.detach();
  };
  EXPECT_TRUE(at::equal(weights(true), weights(false)));
}

// Steps end in another order than they began.
TEST(Speed, TheProcesssSwitchesAreRestoredByTheLastStep) {
  at::Context& context = at::globalContext();
  const bool cublas = context.allowTF32CuBLAS(), cudnn = context.allowTF32CuDNN();
  ASSERT_FALSE(context.benchmarkCuDNN());
  auto first = std::make_unique<Bench>(StepOptions{.precision = {.mode = PrecisionMode::kTf32}});
  auto second =
      std::make_unique<Bench>(StepOptions{.cudnn_benchmark = true, .detect_anomaly = true});
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_TRUE(torch::autograd::AnomalyMode::is_enabled());
  first.reset();
  EXPECT_TRUE(context.benchmarkCuDNN());
  EXPECT_TRUE(torch::autograd::AnomalyMode::is_enabled());
  second.reset();
  EXPECT_EQ(context.allowTF32CuBLAS(), cublas);
  EXPECT_EQ(context.allowTF32CuDNN(), cudnn);
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

// torch refuses to answer whether TF32 is allowed once a program has used both of its interfaces.
TEST(Speed, Tf32SetByTorchsNewerInterfaceStays) {
  using at::Float32Backend, at::Float32Op, at::Float32Precision;
  at::Context& context = at::globalContext();
  const bool cublas = context.allowTF32CuBLAS();
  const Float32Precision own = cublas ? Float32Precision::IEEE : Float32Precision::TF32;
  const auto set = [&] {
    return context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL);
  };
  context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, own);
  ASSERT_THROW(context.allowTF32CuBLAS(), c10::Error);
  {
    const Bench step(StepOptions{.precision = {.mode = PrecisionMode::kTf32, .tf32 = !cublas}});
    const Tf32Scope narrower(cublas);
    EXPECT_EQ(set(), own);
  }
  EXPECT_EQ(set(), own);
  context.setAllowTF32CuBLAS(cublas);
}

TEST(Speed, TheNumberOfThreadsIsRestoredIfAScopeSetIt) {
  const int before = at::get_num_threads();
  {
    const SwitchesScope first;
    {
      const SwitchesScope second;
      second.set({.threads = before + 1});
      second.set({.threads = before + 2});
    }
    EXPECT_EQ(at::get_num_threads(), before + 2);
  }
  EXPECT_EQ(at::get_num_threads(), before);
  {
    const Bench step;
    at::set_num_threads(before + 1);  // by the program itself
  }
  EXPECT_EQ(at::get_num_threads(), before + 1);
  at::set_num_threads(before);
}

TEST(Speed, CudnnsBenchmarkFollowsTheSwitch) {
  const Bench off;
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
  const Bench on({.cudnn_benchmark = true});
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
}

bool tf32_of(PrecisionMode mode, bool tf32) {
  const Bench bench({.precision = {.mode = mode, .tf32 = tf32}});
  EXPECT_EQ(at::globalContext().allowTF32CuDNN(), at::globalContext().allowTF32CuBLAS());
  return at::globalContext().allowTF32CuDNN();
}

TEST(Speed, Tf32IsOnIfTheModeIsNotExact) {
  EXPECT_FALSE(tf32_of(PrecisionMode::kFp32, true));
  for (const auto mode : {PrecisionMode::kTf32, PrecisionMode::kBf16, PrecisionMode::kFp16}) {
    EXPECT_TRUE(tf32_of(mode, true));
    EXPECT_FALSE(tf32_of(mode, false));
  }
}

// The optimizer's state for a parameter of the device "meta", which has no memory.
int64_t host_bytes_of_state(bool create_on_device) {
  const Bench bench({.create_on_device = create_on_device});
  const at::Tensor parameter =
      at::empty({1 << 16}, at::device(at::kMeta).dtype(at::kFloat)).requires_grad_();
  OptimizerOptions options;
  const auto optimizer =
      make_optimizer(options, make_parameter_groups(options, {{"weight", parameter}}));
  TensorMemory& memory = tensor_memory(at::kCPU);
  const int64_t before = memory.live_bytes();
  memory.take_peak();
  EXPECT_TRUE(optimizer->state().at(0).tensor.is_meta());
  return memory.take_peak() - before;
}

TEST(Speed, StateIsCreatedOnTheParametersDevice) {
  EXPECT_LT(host_bytes_of_state(true), 1000);
  EXPECT_GE(host_bytes_of_state(false), (1 << 16) * 4);
  const Bench on;  // restores the process's switch
}

// Page faults while a block of 64 MiB is allocated, written and freed four times.
int64_t pages_mapped(bool keep) {
  const Bench bench({.keep_memory = keep});
  const auto use = [] { at::empty({64 << 20}, at::kByte).fill_(1); };
  const auto faults = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_minflt);
  };
  use();
  const int64_t before = faults();
  for (int i = 0; i < 4; ++i) use();
  return faults() - before;
}

TEST(Speed, MemoryIsKeptFromStepToStep) {
  if (testing::kSanitized) GTEST_SKIP() << "AddressSanitizer replaces malloc";
  // Huge pages, if the system provides them, are 512 times as large.
  EXPECT_GE(pages_mapped(false), 4 * 32);
  EXPECT_LT(pages_mapped(true), 16);
  int64_t in_a_thread = 0;
  std::thread([&] { in_a_thread = pages_mapped(true); }).join();
  EXPECT_LT(in_a_thread, 16) << "malloc's memory of another thread is kept too";
  const Bench on;  // restores the process's switch
}

// sqrt has an infinite slope at 0, and 0 times that is not a number.
TEST(Speed, AnomaliesAreDetectedOnlyIfRequested) {
  const auto with_bad_gradient = [](bool detect) {
    Bench bench({.detect_anomaly = detect});
    bench.model->tail = [](const at::Tensor& x) { return x + (x * 0).sqrt() * 0; };
    bench.run();
  };
  EXPECT_NO_THROW(with_bad_gradient(false));
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
  try {
    with_bad_gradient(true);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("SqrtBackward0"), std::string::npos) << error.what();
  }
  const Bench off;
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

TEST(Speed, EvaluationIsInInferenceModeOrWithoutGradients) {
  const testing::MemoryDataset dataset(
      {testing::noise_jpeg(2, 2, 1), testing::noise_jpeg(2, 2, 2)});
  AugmentOptions augment;
  augment.size = 2;
  LoaderOptions in_order;
  in_order.train = false;
  in_order.shuffle.mode = ShuffleMode::kNone;
  Loader loader(dataset, in_order, augment);
  Bench bench;
  Feeder feeder(loader, at::kCPU, true, bench.ledger);
  std::vector<double> losses;
  for (const bool inference : {true, false}) {
    loader.start_epoch(0);
    EvaluationOptions options;
    options.inference_mode = inference;
    options.observer = [&](const DeviceBatch&, const at::Tensor& logits) {
      EXPECT_EQ(logits.is_inference(), inference);
      EXPECT_FALSE(logits.requires_grad());
      return true;
    };
    losses.push_back(evaluate(*bench.model, classification(), feeder, options).value().loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

std::vector<Stage> two_stages(SmallModel& model) {
  return {{[&](const at::Tensor& x) {
            ++model.forwards;
            return x.contiguous().flatten(1);
          }},
          {[&](const at::Tensor& x) { return at::linear(x, model.weight); }}};
}

TEST(TrainStep, UsesGradientCheckpointingIfRequestedAndLearnsTheSame) {
  Bench plain, checkpointed({.checkpoint_segments = 2}, {}, two_stages);
  for (Bench* bench : {&plain, &checkpointed}) bench->run();
  EXPECT_EQ(plain.model->forwards, 1);
  EXPECT_EQ(checkpointed.model->forwards, 2) << "the first stage was recomputed";
  EXPECT_TRUE(at::equal(plain.model->weight, checkpointed.model->weight));
}

void expect_segments_refused(int segments, std::vector<Stage> (*stages)(SmallModel&),
                             const std::string& part) {
  try {
    const Bench bench({.checkpoint_segments = segments}, {}, stages);
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "train.checkpoint_segments");
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.reason();
  }
}

TEST(TrainStep, RefusesMoreSegmentsThanStages) {
  expect_segments_refused(2, nullptr, "does not define stages");
  expect_segments_refused(3, two_stages, "has only 2 stages, not 3");
}

}  // namespace
}  // namespace saturate
