// torch's BatchNorm2d, whose training can be done by another (see norm_hook.h): what a network of
// one's own is made of for distributed.sync_bn. Same options, names and results.
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include "saturate/norm_hook.h"

namespace saturate {

class BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  at::Tensor forward(const at::Tensor& input) {
    NormHook* const hook = norm_hook();
    if (!hook || !is_training()) return torch::nn::BatchNorm2dImpl::forward(input);
    num_batches_tracked += 1;
    return hook->normalise(input, weight, bias, running_mean, running_var,
                           options.momentum().value(), options.eps());
  }
};
TORCH_MODULE(BatchNorm2d);

}  // namespace saturate
