// SPDX-License-Identifier: BSD-3-Clause
// torch's BatchNorm2d, which under a SyncBatchNorm (sync_batch_norm.h, distributed.sync_bn) takes
// its statistics over all processes. Same options, names and results; but under one it needs
// weights, running statistics and a momentum, the defaults, or throws c10::Error.
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <utility>

namespace saturate {

class BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  at::Tensor forward(const at::Tensor& input);

  bool takes_hook() const {
    return options.affine() && options.track_running_stats() && options.momentum().has_value();
  }
  // A hook computes training's output from `input` [N, C, H, W], and updates the running statistics
  // of `norm`. Null: torch's own computation.
  using Hook = std::function<at::Tensor(const BatchNorm2dImpl& norm, const at::Tensor& input)>;
  void set_hook(Hook hook) { hook_ = std::move(hook); }

 private:
  Hook hook_;
};
TORCH_MODULE(BatchNorm2d);

}  // namespace saturate
