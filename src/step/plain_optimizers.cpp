// SGD, Adam and AdamW as torch.optim's single-tensor versions compute them (foreach=False).
#include <ATen/TensorOperators.h>
#include <ATen/ops/pow.h>

#include "step/factories.h"

namespace saturate {

void plain_sgd(const OptimizerOptions& options, double weight_decay, const Operands& operands,
               double lr) {
  for (size_t i = 0; i < operands.parameters.size(); ++i) {
    const at::Tensor& parameter = operands.parameters[i];
    at::Tensor change = operands.gradients[i];
    if (weight_decay != 0) change = change.add(parameter, weight_decay);
    if (!operands.state.empty()) {
      const at::Tensor& momentum = operands.state[0][i];
      momentum.mul_(options.momentum).add_(change);
      change = options.nesterov ? change.add(momentum, options.momentum) : momentum;
    }
    parameter.add_(change, -lr);
  }
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

}  // namespace saturate
