// BatchNorm over the images of all processes, like torch.nn.SyncBatchNorm.
#pragma once

#include <memory>

#include "saturate/group.h"

namespace saturate {

class Model;

// During its lifetime, `model` computes training statistics over all processes in each
// saturate::BatchNorm2d (batch_norm.h; torch's own is unchanged) of its ModelFacets::norms: one
// all-reduce in each layer's forward and one in its backward. A process may have no images, and
// accumulation needs StepOptions::synced_world. `model` and `group` must outlive this, and both
// this and `group` the graphs made meanwhile. REQUIRES: at most one for a model.
class SyncBatchNorm {
 public:
  SyncBatchNorm(Model& model, Group& group);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

 private:
  class Hook;
  std::unique_ptr<Hook> hook_;
};

}  // namespace saturate
