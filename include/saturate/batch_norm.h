// torch's BatchNorm2d, which under a SyncBatchNorm (sync_batch_norm.h, distributed.sync_bn) takes
// its statistics over all processes. Same options, names and results; but under one it needs
// weights, running statistics and a momentum, the defaults, or throws c10::Error.
#pragma once

#include <torch/nn/modules/batchnorm.h>

namespace saturate {

class NormHook;

class BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  at::Tensor forward(const at::Tensor& input);

  bool takes_hook() const {
    return options.affine() && options.track_running_stats() && options.momentum().has_value();
  }
  // Computes training's forward from now on; null: torch's. `hook` must outlive its use.
  void set_hook(NormHook* hook) { hook_ = hook; }

 private:
  NormHook* hook_ = nullptr;
};
TORCH_MODULE(BatchNorm2d);

}  // namespace saturate
