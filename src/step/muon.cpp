// Muon (https://kellerjordan.github.io/posts/muon) as torch.optim.Muon computes it, for all
// parameters of two or more dimensions; AdamW for the rest. Steps are scaled to AdamW's size
// (torch's "match_rms_adamw"), so that one learning rate suits both.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "step/factories.h"

namespace saturate {
namespace {

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

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Muon>(options, std::move(groups));
}

}  // namespace saturate
