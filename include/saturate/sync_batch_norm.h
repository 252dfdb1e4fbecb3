// BatchNorm over the images of all processes, like torch.nn.SyncBatchNorm.
#pragma once

#include "saturate/group.h"
#include "saturate/norm_hook.h"

namespace saturate {

// During its lifetime, models run on this thread compute training statistics over all processes in
// saturate::BatchNorm2d (batch_norm.h; torch's own is unchanged): one all-reduce in each layer's
// forward and one in its backward. A process may have no images. `group` must outlive this and the
// graphs made meanwhile.
class SyncBatchNorm : public NormHook {
 public:
  explicit SyncBatchNorm(Group& group) : group_(group), before_(set_norm_hook(this)) {}
  ~SyncBatchNorm() override { set_norm_hook(before_); }
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

  at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& running_mean, const at::Tensor& running_var,
                       double momentum, double eps) override;
  int world() const override { return group_.world(); }

 private:
  Group& group_;
  NormHook* const before_;
};

}  // namespace saturate
