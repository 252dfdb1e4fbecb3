// A hook that replaces the models' own BatchNorm.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// Training's BatchNorm of `input` [N, C, H, W]: returns the output, and updates the running
// statistics.
class NormHook {
 public:
  virtual ~NormHook() = default;
  virtual at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& running_mean,
                               const at::Tensor& running_var, double momentum, double eps) = 0;
  // Number of processes that must make the same calls, each with its own images.
  virtual int world() const = 0;
};

// Sets the hook for training on this thread; null: torch's own. Returns the previous one.
NormHook* set_norm_hook(NormHook* hook);
NormHook* norm_hook();

}  // namespace saturate
