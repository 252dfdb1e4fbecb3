// The step, its metrics, and evaluation, on a model small enough for calculations by hand.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "saturate/train_step.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

TEST(RunningMetrics, CountsTop1AndTop5Hits) {
  // Class c has logit c: label 6 is first, label 2 fifth, label 1 sixth.
  const at::Tensor logits = at::arange(7, at::kFloat).expand({3, 7});
  RunningMetrics running(classification());
  running.add(at::scalar_tensor(2.0), logits, at::tensor({6, 2, 1}, at::kLong));
  running.add(at::scalar_tensor(5.0), logits.slice(0, 0, 1), at::tensor({6}, at::kLong));
  const Metrics metrics = running.read();
  EXPECT_EQ(metrics.samples, 4);
  EXPECT_DOUBLE_EQ(metrics.loss, (3 * 2.0 + 5.0) / 4);
  EXPECT_DOUBLE_EQ(*metrics.value("accuracy"), 2.0 / 4);
  EXPECT_DOUBLE_EQ(metrics.value("accuracy5").value(), 3.0 / 4);
  EXPECT_EQ(running.read().samples, 0) << "reading resets it";
}

TEST(RunningMetrics, FiveClassesHaveNoTopFive) {
  RunningMetrics running(classification());
  running.add(at::scalar_tensor(1.0), at::randn({2, 5}), at::tensor({0, 1}, at::kLong));
  EXPECT_FALSE(running.read().value("accuracy5").has_value());
}

// Compared with topk(), which leaves the order of equal logits open.
TEST(RunningMetrics, CountsLikeTopk) {
  at::manual_seed(4);
  for (const auto& [classes, type] :
       std::vector<std::pair<int64_t, at::ScalarType>>{{3, at::kFloat}, {12, at::kDouble}}) {
    const at::Tensor logits = at::randn({200, classes}, type), labels = at::arange(200) % classes;
    const at::Tensor best =
        std::get<1>(at::topk(logits, std::min<int64_t>(5, classes), 1)).eq(labels.unsqueeze(1));
    RunningMetrics running(classification());
    running.add(at::scalar_tensor(1.0), logits, labels);
    const Metrics metrics = running.read();
    EXPECT_EQ(*metrics.value("accuracy") * 200, best.select(1, 0).sum().item<double>());
    EXPECT_EQ(metrics.value("accuracy5").value_or(1) * 200, best.sum().item<double>());
  }
}

TEST(RunningMetrics, EqualLogitsAreOrderedByClassAndNanIsNoHit) {
  const float nan = std::nanf("");
  const at::Tensor logits = at::tensor({1.f, 2.f, 2.f, 0.f, 1.f, 1.f, 1.f,  //
                                        1.f, 2.f, 2.f, 0.f, 1.f, 1.f, 1.f,  //
                                        1.f, 2.f, nan, 0.f, 1.f, 1.f, 1.f,  //
                                        1.f, 2.f, 2.f, 0.f, 1.f, 1.f, 1.f})
                                .view({4, 7});
  RunningMetrics running(classification());
  running.add(at::scalar_tensor(1.0), logits, at::tensor({1, 2, 2, 6}, at::kLong));
  const Metrics metrics = running.read();
  EXPECT_EQ(*metrics.value("accuracy") * 4, 1) << "label 1 of the first row";
  EXPECT_EQ(metrics.value("accuracy5").value() * 4, 2)
      << "label 2 of the second too; label 6 is sixth";
}

TEST(Metrics, MergedMeansAreOverAllSamples) {
  Metrics all;
  all.merge({10, 1.0, {{"accuracy", 0.5}, {"accuracy5", 0.8}}});
  all.merge({30, 2.0, {{"accuracy", 0.9}, {"accuracy5", 1.0}}});
  all.merge({});
  EXPECT_EQ(all.samples, 40);
  EXPECT_DOUBLE_EQ(all.loss, 1.75);
  EXPECT_DOUBLE_EQ(*all.value("accuracy"), 0.8);
  EXPECT_DOUBLE_EQ(all.value("accuracy5").value(), 0.95);
}

// Logits are a linear map of the pixels.
class LinearModel : public Model {
 public:
  explicit LinearModel(at::Tensor initial) : weight(initial.requires_grad_()) {}
  at::Tensor forward(const at::Tensor& images) override {
    counts.push_back(images.size(0));
    const at::Tensor logits = at::linear(images.contiguous().flatten(1), weight);
    logits_type = logits.scalar_type();
    return logits;
  }
  void set_training(bool now) override { training = now; }
  std::vector<NamedTensor> parameters() override { return {{"weight", weight}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

  at::Tensor weight;
  bool training = true;
  std::vector<int64_t> counts;  // images in each forward
  at::ScalarType logits_type{};
};

OptimizerOptions plain_sgd() {
  OptimizerOptions options;
  options.momentum = 0;
  options.nesterov = false;
  options.weight_decay = 0;
  return options;
}

// A model that learns four classes from a batch, with all objects that it needs.
struct Bench {
  Bench(const StepOptions& options, int64_t count, at::ScalarType type = at::kFloat)
      : ledger(Env::posix()) {
    at::manual_seed(1);
    model = std::make_unique<LinearModel>(at::randn({4, 12}, type));
    batch.images = at::randn({count, 3, 2, 2}, type);
    batch.labels = at::arange(count) % 4;
    optimizer = make_optimizer(plain_sgd(), make_parameter_groups(plain_sgd(), model->parameters()),
                               options.precision.mode);
    step = std::make_unique<TrainStep>(*model, classification(), *optimizer, options, ledger);
  }
  at::Tensor weight() const { return model->weight.detach().clone(); }

  Ledger ledger;
  std::unique_ptr<LinearModel> model;
  DeviceBatch batch;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<TrainStep> step;
  RunningMetrics running{classification()};
};

TEST(TrainStep, IsForwardBackwardUpdateAndChargesEachPhase) {
  at::manual_seed(1);
  const at::Tensor initial = at::randn({4, 12});
  LinearModel model(initial.clone());
  DeviceBatch batch{at::randn({5, 3, 2, 2}), at::tensor({0, 1, 2, 3, 0}, at::kLong), {}};
  const auto optimizer =
      make_optimizer(plain_sgd(), make_parameter_groups(plain_sgd(), model.parameters()));
  Ledger ledger(Env::posix());
  TrainStep step(model, classification(), *optimizer, {.label_smoothing = 0.1}, ledger);
  RunningMetrics running(classification());
  step.run(batch, /*lr=*/0.5, running);

  // The gradient of cross-entropy in closed form: (softmax - targets)^T x / N.
  const at::Tensor x = batch.images.flatten(1);
  const at::Tensor targets = at::one_hot(batch.labels, 4) * 0.9 + 0.1 / 4;
  const at::Tensor softmax = at::linear(x, initial).softmax(1);
  const at::Tensor gradient = (softmax - targets).t().matmul(x) / 5;
  EXPECT_TRUE(at::allclose(model.weight.detach(), initial - gradient * 0.5, 1e-5, 1e-6));
  EXPECT_FALSE(model.weight.grad().defined()) << "gradients are set to none";
  for (Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kHost})
    EXPECT_GT(ledger.times()[phase], 0) << phase_name(phase);
}

TEST(TrainStep, MicroBatchesSumToTheBatch) {
  for (const auto& [part, sizes] :
       std::vector<std::pair<int, std::vector<int64_t>>>{{3, {3, 2, 2}}, {6, {4, 3}}, {7, {7}}}) {
    Bench whole({.label_smoothing = 0.1}, 7, at::kDouble);
    Bench parts({.label_smoothing = 0.1, .micro_batch = part}, 7, at::kDouble);
    for (Bench* bench : {&whole, &parts})
      for (int i = 0; i < 3; ++i) bench->step->run(bench->batch, /*lr=*/0.5, bench->running);
    EXPECT_TRUE(at::allclose(parts.weight(), whole.weight(), 1e-12, 0)) << part;
    parts.model->counts.resize(sizes.size());
    EXPECT_EQ(parts.model->counts, sizes);
    const Metrics expected = whole.running.read(), found = parts.running.read();
    EXPECT_EQ(found.samples, 21);
    EXPECT_NEAR(found.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_EQ(found.value("accuracy"), expected.value("accuracy"));
  }
}

TEST(TrainStep, ClipsTheGradientOfTheWholeBatch) {
  Bench free({}, 8), clipped({.micro_batch = 3, .clip_norm = 0.01}, 8);
  const at::Tensor start = free.weight();
  for (Bench* bench : {&free, &clipped}) bench->step->run(bench->batch, 1, bench->running);
  const at::Tensor longer = free.weight() - start, change = clipped.weight() - start;
  EXPECT_NEAR(change.norm().item<float>(), 0.01, 1e-5);
  EXPECT_TRUE(at::allclose(change / change.norm(), longer / longer.norm(), 1e-4, 1e-4));
}

double scale_of(TrainStep& step) {
  for (const auto& [name, tensor] : step.scaler_state())
    if (name == "scale") return tensor.item<float>();
  return 0;
}

// A half is at most 65504, which the gradient of a loss times 2^24 exceeds.
TEST(TrainStep, HalfPrecisionSkipsStepsThatOverflow) {
  Bench exact({}, 8);
  Bench half(
      {.precision = {.mode = PrecisionMode::kFp16, .initial_scale = 16777216}, .micro_batch = 3},
      8);
  const at::Tensor start = half.weight();
  half.step->run(half.batch, 0.5, half.running);
  EXPECT_EQ(half.model->logits_type, at::kHalf);
  EXPECT_TRUE(at::equal(half.weight(), start));
  EXPECT_EQ(scale_of(*half.step), 8388608);
  int left_out = 1;
  for (; at::equal(half.weight(), start); ++left_out) {
    ASSERT_LT(left_out, 20);
    half.step->run(half.batch, 0.5, half.running);
  }
  EXPECT_GT(left_out, 3);
  exact.step->run(exact.batch, 0.5, exact.running);
  EXPECT_TRUE(at::allclose(half.weight(), exact.weight(), 0, 2e-3));
  EXPECT_FALSE(at::equal(half.weight(), exact.weight()));
}

TEST(TrainStep, TheScalersStateIsSavedAndLoaded) {
  const PrecisionOptions fp16{.mode = PrecisionMode::kFp16, .initial_scale = 16777216};
  Bench first({.precision = fp16}, 8), second({.precision = fp16}, 8), plain({}, 8);
  first.step->run(first.batch, 0.5, first.running);
  const auto state = first.step->scaler_state();
  EXPECT_EQ(scale_of(*second.step), 16777216);
  second.step->load_scaler_state(state);
  EXPECT_EQ(scale_of(*second.step), 8388608);
  EXPECT_NO_THROW(plain.step->load_scaler_state(state)) << "of another precision";
  EXPECT_TRUE(plain.step->scaler_state().empty());
  EXPECT_NO_THROW(second.step->load_scaler_state({}));
  EXPECT_EQ(scale_of(*second.step), 8388608);
}

TEST(TrainStep, HalfPrecisionWeightsLearnLikeFp32Ones) {
  for (const auto& [mode, master_weights, tolerance] :
       {std::tuple(PrecisionMode::kFp16, PrecisionMode::kFp16O2, 2e-3),
        std::tuple(PrecisionMode::kBf16, PrecisionMode::kBf16O2, 2e-2)}) {
    Bench wide({.precision = {.mode = mode}, .micro_batch = 3}, 8);
    Bench narrow({.precision = {.mode = master_weights}, .micro_batch = 3}, 8);
    EXPECT_EQ(narrow.weight().itemsize(), 2);
    for (Bench* bench : {&wide, &narrow})
      for (int i = 0; i < 5; ++i) bench->step->run(bench->batch, 0.5, bench->running);
    EXPECT_EQ(narrow.model->logits_type, wide.model->logits_type);
    EXPECT_EQ(narrow.weight().itemsize(), 2);
    EXPECT_TRUE(at::allclose(narrow.weight().to(at::kFloat), wide.weight(), 0, tolerance));
  }
}

TEST(TrainStep, Bf16IsCloseToFp32) {
  Bench exact({}, 8), brain({.precision = {.mode = PrecisionMode::kBf16}}, 8);
  for (Bench* bench : {&exact, &brain}) bench->step->run(bench->batch, 0.5, bench->running);
  EXPECT_EQ(brain.model->logits_type, at::kBFloat16);
  EXPECT_TRUE(at::allclose(brain.weight(), exact.weight(), 0, 2e-2));
}

TEST(TrainStep, Tf32HasNoEffectOnTheCpu) {
  Bench exact({}, 8);
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  Bench tf32({.precision = {.mode = PrecisionMode::kTf32}}, 8);
  EXPECT_TRUE(at::globalContext().allowTF32CuDNN());
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  for (Bench* bench : {&exact, &tf32}) bench->step->run(bench->batch, 0.5, bench->running);
  EXPECT_TRUE(at::equal(tf32.weight(), exact.weight()));
}

// Six images of 4 x 4 pixels, a linear model, and evaluate() over them.
class EvaluateTest : public ::testing::Test {
 protected:
  static std::vector<std::string> files() {
    std::vector<std::string> files;
    for (size_t i = 0; i < 6; ++i) files.push_back(testing::noise_jpeg(4, 4, i));
    return files;
  }
  static AugmentOptions augment() {
    AugmentOptions options;
    options.size = 4;
    return options;
  }
  static LoaderOptions in_order() {
    LoaderOptions options;
    options.batch = 6;
    options.train = false;
    options.shuffle.mode = ShuffleMode::kNone;
    return options;
  }

  EvaluateTest() {
    at::manual_seed(2);
    model = std::make_unique<LinearModel>(at::randn({3, 48}));
    loader.start_epoch(0);
    feeder.next(batch);
  }
  double evaluated(const EvaluationOptions& options) {
    loader.start_epoch(0);
    return evaluate(*model, classification(), feeder, options).value().loss;
  }
  at::Tensor logits(const at::Tensor& images) {
    const at::NoGradGuard no_grad;
    return model->forward(images);
  }
  double loss(const at::Tensor& logits) {
    return at::cross_entropy_loss(logits, batch.labels).item<float>();
  }

  const testing::MemoryDataset dataset{files()};
  Loader loader{dataset, in_order(), augment()};
  Ledger ledger{Env::posix()};
  Feeder feeder{loader, at::kCPU, true, ledger};
  std::unique_ptr<LinearModel> model;
  DeviceBatch batch;
};

TEST_F(EvaluateTest, FlippedImagesHaveHalfTheWeight) {
  const at::Tensor plain = logits(batch.images);
  const at::Tensor both = (plain + logits(batch.images.flip({3}))) / 2;
  EXPECT_NEAR(evaluated({}), loss(plain), 1e-5);
  EXPECT_NEAR(evaluated({.flip = true}), loss(both), 1e-5);
  EXPECT_GT(std::abs(loss(plain) - loss(both)), 1e-3) << "this shows nothing otherwise";
  EXPECT_TRUE(model->training);
}

TEST_F(EvaluateTest, AnExceptionLeavesTheModelInTrainingMode) {
  EvaluationOptions options;
  options.observer = [&](const DeviceBatch&, const at::Tensor&) -> bool {
    EXPECT_FALSE(model->training);
    throw std::runtime_error("of the observer");
  };
  EXPECT_THROW(evaluated(options), std::runtime_error);
  EXPECT_TRUE(model->training);
}

TEST_F(EvaluateTest, LeavesTf32AsTheTrainingHasIt) {
  const Bench training({.precision = {.mode = PrecisionMode::kTf32}}, 8);
  EvaluationOptions options;
  options.observer = [](const DeviceBatch&, const at::Tensor&) {
    EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
    return true;
  };
  evaluated(options);
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  EXPECT_TRUE(at::globalContext().allowTF32CuDNN());
}

// The shifted images made pixel by pixel: index -1 is 1, index 4 is 2.
TEST_F(EvaluateTest, ShiftedImagesHaveHalfTheWeightTogether) {
  const auto moved = [&](std::vector<int64_t> index) {
    const at::Tensor rows = at::tensor(at::IntArrayRef(index));
    return batch.images.index_select(2, rows).index_select(3, rows);
  };
  const at::Tensor up = moved({1, 0, 1, 2}), down = moved({1, 2, 3, 2});
  const at::Tensor centre = logits(batch.images);
  const at::Tensor all = centre / 2 + (logits(up) + logits(down)) / 4;
  EXPECT_NEAR(evaluated({.shift = 1}), loss(all), 1e-5);
  EXPECT_GT(std::abs(loss(centre) - loss(all)), 1e-3) << "this shows nothing otherwise";
  const auto with_mirror = [&](const at::Tensor& view) {
    return (logits(view) + logits(view.flip({3}))) / 2;
  };
  const at::Tensor six = with_mirror(batch.images) / 2 + (with_mirror(up) + with_mirror(down)) / 4;
  EXPECT_NEAR(evaluated({.flip = true, .shift = 1}), loss(six), 1e-5);
}

}  // namespace
}  // namespace saturate
