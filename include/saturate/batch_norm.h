// SPDX-License-Identifier: BSD-3-Clause
// torch's BatchNorm2d, with the same options, names and results. Under a SyncBatchNorm
// (sync_batch_norm.h, distributed.sync_bn) it computes its statistics over all processes; it then
// needs weights, running statistics and a momentum (the defaults), or throws c10::Error.
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
