// LAMB with train.clip_norm = 1, compared with the formula of timm's Lamb, whose own clipping has
// max_grad_norm=1.0 (timm 1.0, timm/optim/lamb.py).
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "saturate/optimizer.h"
#include "tests/formula.h"

namespace saturate {
namespace {

struct TimmTensor {
  at::Tensor weight, mean, square;
};

void timm_step(std::vector<TimmTensor>& tensors, const std::vector<at::Tensor>& gradients,
               const OptimizerOptions& options, double lr, int step) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) squares += gradient.square().sum().item<double>();
  const double clip = std::max(1.0, std::sqrt(squares) / 1.0);
  const double first = 1 - std::pow(options.beta1, step),
               second = 1 - std::pow(options.beta2, step);
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& [weight, mean, square] = tensors[i];
    const at::Tensor gradient = gradients[i] / clip;
    mean = mean * options.beta1 + gradient * (1 - options.beta1);
    square = square * options.beta2 + gradient.square() * (1 - options.beta2);
    at::Tensor change = mean / first / (square.sqrt() / std::sqrt(second) + options.eps);
    if (weight.dim() > 1) {  // only decayed parameters are scaled
      change = change + weight * options.weight_decay;
      change = change * (weight.norm() / change.norm());
    }
    weight = weight - change * lr;
  }
}

TEST(Lamb, WithClippingEqualsTimms) {
  OptimizerOptions options;
  options.name = "lamb";
  options.weight_decay = 1e-2;
  std::vector<NamedTensor> parameters;
  std::vector<TimmTensor> expected;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"conv", {4, 3, 3, 3}}, {"fc", {5, 7}}, {"bias", {5}}}) {
    const at::Tensor start = testing::symmetric(name, shape, 1).to(at::kDouble);
    parameters.push_back({name, start.clone().requires_grad_()});
    expected.push_back({start, start * 0, start * 0});
  }
  const auto optimizer = make_optimizer(options, make_parameter_groups(options, parameters));
  int clipped = 0;
  for (int step = 1; step <= 30; ++step) {
    std::vector<at::Tensor> gradients;
    for (const auto& [name, tensor] : parameters) {
      const double size = step % 3 == 0 ? 0.02 : 0.5;  // some are short enough
      gradients.push_back(
          testing::symmetric(name + ".grad." + std::to_string(step), tensor.sizes(), size)
              .to(at::kDouble));
      tensor.mutable_grad() = gradients.back().clone();
    }
    clipped += clip_gradients(optimizer->gradients(), 1).item<double>() > 1;
    optimizer->step(0.05);
    timm_step(expected, gradients, options, 0.05, step);
  }
  EXPECT_EQ(clipped, 20) << "this shows less otherwise";
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor difference = parameters[i].tensor.detach() - expected[i].weight;
    // clip_grad_norm_ adds 1e-6 to the norm, and timm does not.
    EXPECT_LT(difference.abs().max().item<double>(), 1e-5) << parameters[i].name;
  }
}

}  // namespace
}  // namespace saturate
