// SGD, Adam and AdamW with torch.optim's fused=True semantics, or with separate operators as its
// single-tensor versions compute them (foreach=False): the reference for the fused kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/pow.h>

#include <optional>
#include <utility>

#include "step/factories.h"

namespace saturate {
namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The step counts are on the parameters' device: the kernel reads them there.
void count_step(const Slot& steps) {
  if (!steps.front().is_cpu()) return at::_foreach_add_(steps, 1);
  for (const at::Tensor& step : steps) *step.mutable_data_ptr<float>() += 1;
}

class Sgd : public GroupedOptimizer {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  // torch's first step sets the momenta to the gradients, which equals adding to zero; but if
  // found_inf skips that step, torch's momenta stay uninitialised.
  void update(const Group& group, const Operands& operands, double lr,
              const at::Tensor& found_inf) override {
    if (!options_.fused) return GroupedOptimizer::update(group, operands, lr, found_inf);
    const Slot momenta = operands.state.empty() ? Slot() : operands.state[0];
    const auto fused = [&](const auto& rate) {
      at::_fused_sgd_(operands.parameters, operands.gradients, momenta, group.about.weight_decay,
                      momenta.empty() ? 0 : options_.momentum, rate, /*dampening=*/0.0,
                      options_.nesterov, /*maximize=*/false, /*is_first_step=*/false,
                      /*grad_scale=*/{}, if_defined(found_inf));
    };
    const at::Tensor there = rate_for(group);
    there.defined() ? fused(there) : fused(lr);
  }

  void move(const Operands& operands, double weight_decay, double lr) const override {
    for (size_t i = 0; i < operands.parameters.size(); ++i) {
      const at::Tensor& parameter = operands.parameters[i];
      at::Tensor change = operands.gradients[i];
      if (weight_decay != 0) change = change.add(parameter, weight_decay);
      if (!operands.state.empty()) {
        const at::Tensor& momentum = operands.state[0][i];
        momentum.mul_(options_.momentum).add_(change);
        change = options_.nesterov ? change.add(momentum, options_.momentum) : momentum;
      }
      parameter.add_(change, -lr);
    }
  }

  bool reads_rate() const override { return options_.fused; }
};

// `lr`: a number, or a scalar on the parameters' device.
template <class Rate>
void fused_adam(const OptimizerOptions& options, Decay decay, double weight_decay,
                const Operands& operands, const Rate& lr, const at::Tensor& found_inf) {
  const Slot &steps = operands.state[0], &means = operands.state[1], &squares = operands.state[2];
  count_step(steps);
  if (decay == Decay::kL2)
    at::_fused_adam_(operands.parameters, operands.gradients, means, squares,
                     /*max_exp_avg_sqs=*/{}, steps, lr, options.beta1, options.beta2, weight_decay,
                     options.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                     if_defined(found_inf));
  else
    at::_fused_adamw_(operands.parameters, operands.gradients, means, squares,
                      /*max_exp_avg_sqs=*/{}, steps, lr, options.beta1, options.beta2, weight_decay,
                      options.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                      if_defined(found_inf));
  if (found_inf.defined()) at::_foreach_sub_(steps, Slot(steps.size(), found_inf));
}

void plain_adam(const OptimizerOptions& options, Decay decay, double weight_decay,
                const Operands& operands, double lr) {
  // 1 - beta^step in double, as beta is close to 1; on the device, where the step count is.
  const auto correction = [](double beta, const at::Tensor& step) {
    return 1 - at::pow(beta, step.to(at::kDouble));
  };
  for (size_t i = 0; i < operands.parameters.size(); ++i) {
    const at::Tensor& parameter = operands.parameters[i];
    const at::Tensor &step = operands.state[0][i], &mean = operands.state[1][i],
                     &square = operands.state[2][i];
    at::Tensor gradient = operands.gradients[i];
    step.add_(1);
    if (weight_decay != 0 && decay == Decay::kL2) gradient = gradient.add(parameter, weight_decay);
    if (weight_decay != 0 && decay == Decay::kDecoupled) parameter.mul_(1 - lr * weight_decay);
    mean.lerp_(gradient, 1 - options.beta1);
    square.mul_(options.beta2).addcmul_(gradient, gradient, 1 - options.beta2);
    const at::Tensor root = correction(options.beta2, step).sqrt();
    const at::Tensor denominator = (square.sqrt() / root).add_(options.eps);
    parameter.sub_(mean / denominator * (lr / correction(options.beta1, step)));
  }
}

class Adam : public GroupedOptimizer {
 public:
  Adam(const OptimizerOptions& options, Decay decay, std::vector<ParameterGroup> groups)
      : GroupedOptimizer(options, std::move(groups), kAdamSlots), decay_(decay) {}

 private:
  void update(const Group& group, const Operands& operands, double lr,
              const at::Tensor& found_inf) override {
    const double weight_decay = group.about.weight_decay;
    if (const at::Tensor there = rate_for(group); there.defined())
      fused_adam(options_, decay_, weight_decay, operands, there, found_inf);
    else
      update_adam(options_, decay_, weight_decay, operands, lr, found_inf);
  }
  bool reads_rate() const override { return options_.fused; }

  Decay decay_;
};

}  // namespace

void update_adam(const OptimizerOptions& options, Decay decay, double weight_decay,
                 const Operands& operands, double lr, const at::Tensor& found_inf) {
  if (options.fused)
    fused_adam(options, decay, weight_decay, operands, lr, found_inf);
  else
    unless_found_inf(operands, found_inf,
                     [&] { plain_adam(options, decay, weight_decay, operands, lr); });
}

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& options,
                                    std::vector<ParameterGroup> groups) {
  return std::make_unique<Sgd>(options, std::move(groups), momentum_slots(options));
}

std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& options,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<Adam>(options, Decay::kL2, std::move(groups));
}

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options,
                                      std::vector<ParameterGroup> groups) {
  return std::make_unique<Adam>(options, Decay::kDecoupled, std::move(groups));
}

}  // namespace saturate
