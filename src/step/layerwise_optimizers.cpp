// LARS (https://arxiv.org/abs/1708.03888) and LAMB (https://arxiv.org/abs/1904.00962) as timm's
// Lars and Lamb(max_grad_norm=None): Lamb's built-in clipping, at a norm of 1 by default, is
// train.clip_norm here, as for any optimizer. Both scale each tensor's update by its weight norm,
// for batches so large that one learning rate does not suit all layers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <utility>

#include "step/factories.h"

namespace saturate {
namespace {

// The norm of each tensor, [tensors].
at::Tensor norms(const std::vector<at::Tensor>& tensors) {
  return at::stack(at::_foreach_norm(tensors, 2));
}

// `ratio` where both norms are above 0, else 1; one factor per tensor.
std::vector<at::Tensor> trust(const at::Tensor& ratio, const at::Tensor& weight_norms,
                              const at::Tensor& update_norms) {
  const at::Tensor usable = weight_norms.gt(0).logical_and(update_norms.gt(0));
  return at::where(usable, ratio, at::ones_like(ratio)).unbind();
}

class Lars : public GroupedOptimizer {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  // Parameters without weight decay (biases, norms) are not scaled either.
  std::vector<at::Tensor> scaled_gradients(const Operands& operands, double weight_decay) const {
    if (weight_decay == 0) return operands.gradients;
    const at::Tensor w = norms(operands.parameters), g = norms(operands.gradients);
    const at::Tensor ratio = options_.trust * w / (g + w * weight_decay + options_.eps);
    auto scaled = at::_foreach_add(operands.gradients, operands.parameters, weight_decay);
    at::_foreach_mul_(scaled, trust(ratio, w, g));
    return scaled;
  }

  void move(const Operands& operands, double weight_decay, double lr) const override {
    auto change = scaled_gradients(operands, weight_decay);
    if (!operands.state.empty()) {
      const Slot& momenta = operands.state[0];
      at::_foreach_mul_(momenta, options_.momentum);
      at::_foreach_add_(momenta, change);
      change = options_.nesterov ? at::_foreach_add(change, momenta, options_.momentum) : momenta;
    }
    at::_foreach_add_(operands.parameters, change, -lr);
  }
};

class Lamb : public GroupedOptimizer {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  // 1 - beta^steps, one scalar per tensor; in double, as beta is close to 1.
  static std::vector<at::Tensor> bias_corrections(double beta, const Slot& steps) {
    return (1 - at::pow(beta, at::stack(steps).to(at::kDouble))).unbind();
  }

  void move(const Operands& operands, double weight_decay, double lr) const override {
    const auto& [beta1, beta2] = std::pair(options_.beta1, options_.beta2);
    const Slot &steps = operands.state[0], &means = operands.state[1], &squares = operands.state[2];
    at::_foreach_add_(steps, 1);
    at::_foreach_lerp_(means, operands.gradients, 1 - beta1);
    at::_foreach_mul_(squares, beta2);
    at::_foreach_addcmul_(squares, operands.gradients, operands.gradients, 1 - beta2);

    auto denominators = at::_foreach_div(squares, bias_corrections(beta2, steps));
    at::_foreach_sqrt_(denominators);
    at::_foreach_add_(denominators, options_.eps);
    auto change = at::_foreach_div(means, bias_corrections(beta1, steps));
    at::_foreach_div_(change, denominators);
    if (weight_decay != 0) {
      at::_foreach_add_(change, operands.parameters, weight_decay);
      const at::Tensor w = norms(operands.parameters), c = norms(change);
      at::_foreach_mul_(change, trust(w / c, w, c));
    }
    at::_foreach_add_(operands.parameters, change, -lr);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Lars>(options, std::move(groups), momentum_slots(options));
}

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Lamb>(options, std::move(groups), kAdamSlots);
}

}  // namespace saturate
