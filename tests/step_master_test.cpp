// Weights in half precision with fp32 master weights.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "saturate/data/error.h"
#include "saturate/optimizer.h"
#include "tests/formula.h"

namespace saturate {
namespace {

using testing::symmetric;

std::vector<NamedTensor> master_parameters() {
  return {{"conv", symmetric("conv", {4, 3, 3, 3}, 1).requires_grad_()},
          {"bias", symmetric("bias", {5}, 1).requires_grad_()}};
}

std::unique_ptr<Optimizer> master_optimizer(const std::vector<NamedTensor>& parameters,
                                            PrecisionMode mode) {
  OptimizerOptions options;
  options.name = "adamw";
  return make_optimizer(options, make_parameter_groups(options, parameters), mode);
}

// Gradients that a half represents exactly, in the parameters' own types.
void run_steps(Optimizer& optimizer, const std::vector<NamedTensor>& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    for (const auto& [name, tensor] : parameters)
      tensor.mutable_grad() = symmetric(name + ".grad." + std::to_string(step), tensor.sizes(), 0.5)
                                  .to(at::kHalf)
                                  .to(tensor.scalar_type());
    optimizer.take_gradients();
    optimizer.step(1e-5);  // most steps change a half by less than its spacing
  }
}

at::Tensor named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const auto& known : tensors)
    if (known.name == name) return known.tensor;
  return {};
}

TEST(MasterWeights, ChangeLikeFp32Weights) {
  const auto wide = master_parameters(), narrow = master_parameters();
  const auto exact = master_optimizer(wide, PrecisionMode::kFp32);
  const auto master_weights = master_optimizer(narrow, PrecisionMode::kFp16O2);
  EXPECT_EQ(narrow[0].tensor.scalar_type(), at::kHalf);
  EXPECT_EQ(narrow[1].tensor.scalar_type(), at::kFloat) << "one dimension";
  EXPECT_TRUE(narrow[0].tensor.requires_grad());
  run_steps(*exact, wide, 0, 50);
  run_steps(*master_weights, narrow, 0, 50);
  EXPECT_TRUE(at::equal(named(master_weights->state(), "conv.master"), wide[0].tensor));
  EXPECT_TRUE(at::equal(narrow[0].tensor, wide[0].tensor.to(at::kHalf)));
  EXPECT_TRUE(at::equal(narrow[1].tensor, wide[1].tensor));
}

TEST(MasterWeights, SumGradientsInFp32) {
  const auto parameters = master_parameters();
  const auto optimizer = master_optimizer(parameters, PrecisionMode::kFp16O2);
  for (double gradient : {2048.0, 1.0}) {  // a half cannot represent their sum
    parameters[0].tensor.mutable_grad() = at::full({4, 3, 3, 3}, gradient, at::kHalf);
    optimizer->take_gradients();
    EXPECT_FALSE(parameters[0].tensor.grad().defined());
  }
  ASSERT_EQ(optimizer->gradients().size(), 1u);
  EXPECT_EQ(optimizer->gradients()[0][0][0][0][0].item<float>(), 2049);
  optimizer->zero_grad();
  EXPECT_TRUE(optimizer->gradients().empty());
}

TEST(MasterWeights, HaveTheGradientsOfTheModelsParameters) {
  const auto parameters = master_parameters();
  const auto optimizer = master_optimizer(parameters, PrecisionMode::kFp16O2);
  for (const auto& [name, tensor] : parameters)
    tensor.mutable_grad() = symmetric(name + ".grad", tensor.sizes(), 0.5).to(tensor.scalar_type());
  optimizer->take_gradients();
  for (const auto& [name, tensor] : parameters) {
    const at::Tensor found = optimizer->gradient_of(tensor);
    ASSERT_TRUE(found.defined()) << name;
    const auto type = tensor.scalar_type();
    EXPECT_TRUE(
        at::equal(found, symmetric(name + ".grad", tensor.sizes(), 0.5).to(type).to(at::kFloat)))
        << name;
  }
}

TEST(MasterWeights, AResumedRunContinuesBitEqually) {
  const auto straight = master_parameters(), stopped = master_parameters(),
             resumed = master_parameters();
  const auto whole = master_optimizer(straight, PrecisionMode::kBf16O2);
  run_steps(*whole, straight, 0, 20);
  const auto before = master_optimizer(stopped, PrecisionMode::kBf16O2);
  run_steps(*before, stopped, 0, 7);
  const auto after = master_optimizer(resumed, PrecisionMode::kBf16O2);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < resumed.size(); ++i) resumed[i].tensor.copy_(stopped[i].tensor);
  }
  after->load_state(before->state());
  run_steps(*after, resumed, 7, 20);
  EXPECT_TRUE(at::equal(resumed[0].tensor, straight[0].tensor));
  EXPECT_TRUE(
      at::equal(named(after->state(), "conv.master"), named(whole->state(), "conv.master")));
}

TEST(MasterWeights, StartFromWeightsLoadedIntoTheModel) {
  const auto parameters = master_parameters();
  const auto optimizer = master_optimizer(parameters, PrecisionMode::kFp16O2);
  {
    const at::NoGradGuard no_grad;
    parameters[0].tensor.fill_(3);
  }
  run_steps(*optimizer, parameters, 0, 1);
  EXPECT_NEAR(named(optimizer->state(), "conv.master")[0][0][0][0].item<float>(), 3, 1e-3);
}

TEST(MasterWeights, StateOfAnotherShapeIsRefused) {
  const auto parameters = master_parameters();
  const auto optimizer = master_optimizer(parameters, PrecisionMode::kFp16O2);
  auto state = optimizer->state();
  state.back().tensor = at::zeros({2});
  try {
    optimizer->load_state(state);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
  }
}

}  // namespace
}  // namespace saturate
