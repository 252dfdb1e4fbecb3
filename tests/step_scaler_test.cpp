// Loss scaling and clipping, compared with torch.amp.GradScaler and clip_grad_norm_
// (tests/oracles/scaler_goldens.py).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "saturate/grad_scaler.h"
#include "saturate/optimizer.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const std::map<int, float> kOverflows = {{3, kInf},  {9, std::nanf("")},  {10, -kInf},
                                         {21, kInf}, {22, std::nanf("")}, {38, kInf}};
constexpr GradScalerOptions kOptions{.initial_scale = 1024, .interval = 5};

std::vector<NamedTensor> make_parameters() {
  return {{"fc", testing::symmetric("fc", {5, 7}, 1).requires_grad_()},
          {"bias", testing::symmetric("bias", {5}, 1).requires_grad_()}};
}

void give_gradients(const std::vector<NamedTensor>& parameters, int step, double scale) {
  for (const auto& [name, tensor] : parameters)
    tensor.mutable_grad() =
        testing::symmetric(name + ".grad." + std::to_string(step), tensor.sizes(), 0.5) * scale;
  if (kOverflows.contains(step)) parameters[0].tensor.grad()[2][3].fill_(kOverflows.at(step));
}

std::unique_ptr<Optimizer> optimizer_for(const std::string& name,
                                         const std::vector<NamedTensor>& parameters) {
  OptimizerOptions options;
  options.name = name;
  options.weight_decay = 0;
  return make_optimizer(options, make_parameter_groups(options, parameters));
}

class AgainstTorch : public ::testing::TestWithParam<size_t> {};

TEST_P(AgainstTorch, EveryDecisionIsEqual) {
  at::set_num_threads(1);
  std::ifstream file(testing::source_path("tests/goldens/step/scaler.json"));
  const auto golden = nlohmann::json::parse(file).at(GetParam());
  const auto parameters = make_parameters();
  const auto optimizer = optimizer_for(golden["name"], parameters);
  auto scaler = std::make_unique<GradScaler>(kOptions, at::kCPU);
  for (int step = 0; step < 40; ++step) {
    SCOPED_TRACE(step);
    if (step == 24) {  // as after a resume
      const auto saved = scaler->state();
      scaler = std::make_unique<GradScaler>(GradScalerOptions{.interval = 5}, at::kCPU);
      scaler->load_state(saved);
    }
    const auto& expected = golden["trace"][size_t(step)];
    give_gradients(parameters, step, scaler->scale(at::ones({})).item<float>());
    const at::Tensor before = parameters[1].tensor.detach().clone();
    const at::Tensor found_inf = scaler->unscale(optimizer->gradients());
    const double norm = clip_gradients(optimizer->gradients(), 0.75).item<float>();
    optimizer->step(0.05, found_inf);
    scaler->update();
    ASSERT_EQ(scaler->value(), double(expected["scale"]));
    ASSERT_EQ(scaler->state()[1].tensor.item<int>(), int(expected["growth_tracker"]));
    ASSERT_EQ(at::equal(before, parameters[1].tensor.detach()), bool(expected["skipped"]));
    if (expected["norm"].is_null())
      ASSERT_FALSE(std::isfinite(norm));
    else
      ASSERT_NEAR(norm, double(expected["norm"]), 1e-6);
  }
  for (const auto& [name, tensor] : parameters) {
    const std::vector<double> expected = golden["parameters"][name];
    const at::Tensor found = tensor.detach().flatten().to(at::kDouble);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(found[int64_t(i)].item<double>(), expected[i], 1e-6) << name << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(GradScaler, AgainstTorch, ::testing::Values(0, 1, 2));

TEST(GradScaler, UnscalingTwiceIsAnError) {
  GradScaler scaler(kOptions, at::kCPU);
  const std::vector<at::Tensor> gradients = {at::ones({3})};
  const auto expect_refused = [&](const auto& call) {
    try {
      call();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRun);
    }
  };
  expect_refused([&] { scaler.update(); });
  scaler.unscale(gradients);
  expect_refused([&] { scaler.unscale(gradients); });
  EXPECT_FLOAT_EQ(gradients[0][0].item<float>(), 1.0f / 1024) << "refused before any change";
  scaler.update();
  EXPECT_NO_THROW(scaler.unscale(gradients));
}

TEST(GradScaler, MissingStateDoesNotChangeIt) {
  GradScaler scaler(kOptions, at::kCPU);
  scaler.load_state(
      {{"scale", at::full({}, 8.0, at::kFloat)}, {"other", at::full({}, 9.0, at::kFloat)}});
  EXPECT_EQ(scaler.value(), 8);
  EXPECT_EQ(scaler.state()[1].tensor.item<int>(), 0);
}

TEST(ClipGradients, ShortOnesAreNotChanged) {
  const std::vector<at::Tensor> gradients = {at::full({2, 2}, 1.5), at::full({}, 4.0)};
  EXPECT_FLOAT_EQ(clip_gradients(gradients, 6).item<float>(), 5);
  EXPECT_TRUE(at::equal(gradients[0], at::full({2, 2}, 1.5)));
  EXPECT_FLOAT_EQ(clip_gradients(gradients, 2.5).item<float>(), 5);
  EXPECT_NEAR(gradients[0][1][0].item<float>(), 0.75, 1e-6);
  EXPECT_NEAR(gradients[1].item<float>(), 2, 1e-6);
}

class TwoTensors : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override { return images; }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {{"a", a}, {"b", b}}; }
  std::vector<NamedTensor> buffers() override { return {{"mean", mean}, {"count", count}}; }
  void to(const at::Device&, bool) override {}
  at::Tensor a = at::zeros({2}), b = at::zeros({2, 2}), mean = at::zeros({2}),
             count = at::zeros({}, at::kLong);
};

TEST(FirstNonFinite, NamesParametersBeforeBuffers) {
  TwoTensors model;
  EXPECT_EQ(first_non_finite(model), "");
  model.mean[1].fill_(std::nanf(""));
  EXPECT_EQ(first_non_finite(model), "mean");
  model.b[1][0].fill_(kInf);
  EXPECT_EQ(first_non_finite(model), "b");
}

}  // namespace
}  // namespace saturate
