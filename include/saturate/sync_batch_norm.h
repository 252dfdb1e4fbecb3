// BatchNorm over the images of all processes, like torch.nn.SyncBatchNorm.
#pragma once

#include <memory>

#include "saturate/group.h"

namespace saturate {

// During its lifetime, models run on this thread compute training statistics over all processes in
// saturate::BatchNorm2d (batch_norm.h; torch's own is unchanged): one all-reduce in each layer's
// forward and one in its backward. A process may have no images. `group` must outlive this and the
// graphs made meanwhile.
class SyncBatchNorm {
 public:
  explicit SyncBatchNorm(Group& group);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

 private:
  class Hook;
  std::unique_ptr<Hook> hook_;
};

}  // namespace saturate
