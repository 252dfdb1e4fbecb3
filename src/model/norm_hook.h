// A computation of BatchNorm in place of torch's: see BatchNorm2dImpl::set_hook().
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
};

}  // namespace saturate
