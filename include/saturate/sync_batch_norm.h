// SPDX-License-Identifier: BSD-3-Clause
// BatchNorm over the images of all processes, like torch.nn.SyncBatchNorm.
#pragma once

#include <vector>

#include "saturate/group.h"

namespace saturate {

class BatchNorm2dImpl;
class Model;

// During its lifetime, `model` computes training statistics over all processes in each
// saturate::BatchNorm2d (batch_norm.h; torch's own is unchanged) of its ModelFacets::norms: one
// all-reduce in each layer's forward and one in its backward. A process may have no images, and
// accumulation needs StepOptions::synced_world. `model` must outlive this, and `group` also the
// graphs made meanwhile; with gradient checkpointing this must outlive them too. REQUIRES: at most
// one for a model.
class SyncBatchNorm {
 public:
  SyncBatchNorm(Model& model, Group& group);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

 private:
  const std::vector<BatchNorm2dImpl*> norms_;
};

}  // namespace saturate
