// Where another BatchNorm takes the place of the models' own.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// Training's BatchNorm of `input` [N, C, H, W]: the output, with the running statistics updated.
class NormHook {
 public:
  virtual ~NormHook() = default;
  virtual at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& running_mean,
                               const at::Tensor& running_var, double momentum, double eps) = 0;
  // Processes that have to call it as often, each with its own images.
  virtual int world() const = 0;
};

// What the models run on this thread use in training; null: torch's. Gives the one before.
NormHook* set_norm_hook(NormHook* hook);
NormHook* norm_hook();

}  // namespace saturate
