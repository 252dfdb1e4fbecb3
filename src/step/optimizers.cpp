// The table of optimizers, and those that are made of torch's operators on lists of tensors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "saturate/optimizer.h"
#include "step/factories.h"
#include "step/precision.h"

namespace saturate {
namespace {

// LARS (https://arxiv.org/abs/1708.03888) and LAMB (https://arxiv.org/abs/1904.00962) as timm's
// Lars and Lamb(max_grad_norm=None): Lamb's built-in clipping, at a norm of 1 by default, is
// train.clip_norm here, as for any optimizer. Both scale each tensor's update by its weight norm,
// for batches so large that one learning rate does not suit all layers.

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

// RMSprop (https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf) as
// torch.optim.RMSprop, whose alpha is the second of optimizer.betas.
class RmsProp : public GroupedOptimizer {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void move(const Operands& operands, double weight_decay, double lr) const override {
    const auto gradients =
        weight_decay == 0 ? operands.gradients
                          : at::_foreach_add(operands.gradients, operands.parameters, weight_decay);
    const Slot& squares = operands.state[0];
    at::_foreach_mul_(squares, options_.beta2);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - options_.beta2);
    auto denominators = at::_foreach_sqrt(squares);
    at::_foreach_add_(denominators, options_.eps);
    auto change = at::_foreach_div(gradients, denominators);
    if (operands.state.size() > 1) {
      at::_foreach_mul_(operands.state[1], options_.momentum);
      at::_foreach_add_(operands.state[1], change);
      change = operands.state[1];
    }
    at::_foreach_add_(operands.parameters, change, -lr);
  }
};

// Muon (https://kellerjordan.github.io/posts/muon) as torch.optim.Muon computes it, for all
// parameters of two or more dimensions; AdamW for the rest. Steps are scaled to AdamW's size
// (torch's "match_rms_adamw"), so that one learning rate suits both.

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // coefficients of the quintic iteration
constexpr int kIterations = 5;
constexpr double kEps = 1e-7;
constexpr double kAdamWsSize = 0.2;  // typical RMS of AdamW's step

// Brings all singular values of `matrix` near 1. Computes in bf16 on a GPU, as torch does
// everywhere; few CPUs support it.
at::Tensor orthogonalised(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.is_cuda() ? matrix.to(at::kBFloat16) : matrix;
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(kEps);  // a singular value above 1 would diverge
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA, 1);
  }
  return tall ? x.t() : x;
}

class Muon : public GroupedOptimizer {
 public:
  Muon(const OptimizerOptions& options, std::vector<ParameterGroup> groups)
      : GroupedOptimizer(options) {
    for (auto& group : groups) {
      const auto first_other =
          std::stable_partition(group.parameters.begin(), group.parameters.end(), is_matrix);
      ParameterGroup others = group;
      others.parameters.assign(first_other, group.parameters.end());
      group.parameters.erase(first_other, group.parameters.end());
      add_group(std::move(group), {"momentum"});
      add_group(std::move(others), kAdamSlots);
    }
  }

 private:
  static bool is_matrix(const NamedTensor& named) { return named.tensor.dim() >= 2; }

  void update(const Group& group, const Operands& operands, double lr,
              const at::Tensor& found_inf) override {
    if (group.slot_names == kAdamSlots)
      update_adam(options_, Decay::kDecoupled, group.about.weight_decay, operands, lr, found_inf);
    else
      GroupedOptimizer::update(group, operands, lr, found_inf);
  }

  void move(const Operands& operands, double weight_decay, double lr) const override {
    const auto& [parameters, gradients, state] = operands;
    const Slot& momenta = state[0];
    at::_foreach_lerp_(momenta, gradients, 1 - options_.momentum);
    const auto directions =
        options_.nesterov ? at::_foreach_lerp(gradients, momenta, options_.momentum) : momenta;
    at::_foreach_mul_(parameters, 1 - lr * weight_decay);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor matrix = directions[i].flatten(1);  // one row per filter
      const double longer = double(std::max(matrix.size(0), matrix.size(1)));
      parameters[i].add_(orthogonalised(matrix).reshape(parameters[i].sizes()),
                         -lr * kAdamWsSize * std::sqrt(longer));
    }
  }
};

#define SATURATE_ROW(name, doc, ...) {#name, doc, make_##name, {__VA_ARGS__}},
constexpr RegistryEntry<OptimizerFactory, OptimizerTraits> kOptimizers[] = {
    SATURATE_OPTIMIZERS(SATURATE_ROW)};
#undef SATURATE_ROW

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Lars>(options, std::move(groups), momentum_slots(options));
}

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Lamb>(options, std::move(groups), kAdamSlots);
}

std::unique_ptr<Optimizer> make_rmsprop(const OptimizerOptions& options,
                                        std::vector<ParameterGroup> groups) {
  std::vector<std::string> slots = momentum_slots(options);
  slots.insert(slots.begin(), "square_avg");
  return std::make_unique<RmsProp>(options, std::move(groups), slots);
}

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Muon>(options, std::move(groups));
}

std::span<const RegistryEntry<OptimizerFactory, OptimizerTraits>> optimizers() {
  return kOptimizers;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups, PrecisionMode mode) {
  if (has_master_weights(mode))
    return make_master_optimizer(options, std::move(groups), *reduced_type(mode));
  return find_entry(optimizers(), options.name, "optimizer.name").make(options, std::move(groups));
}

}  // namespace saturate
