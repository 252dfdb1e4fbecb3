// torch's BatchNorm2d with a replaceable training forward (see norm_hook.h): custom networks use it
// to support distributed.sync_bn. Same options, names and results; but under a hook it needs
// weights, running statistics and a momentum, the defaults, or throws c10::Error.
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
    TORCH_CHECK(takes_hook(),
                "a BatchNorm2d over processes needs affine, track_running_stats and a momentum");
    num_batches_tracked += 1;
    return hook->normalise(input, weight, bias, running_mean, running_var,
                           options.momentum().value(), options.eps());
  }

  bool takes_hook() const {
    return options.affine() && options.track_running_stats() && options.momentum().has_value();
  }
};
TORCH_MODULE(BatchNorm2d);

}  // namespace saturate
