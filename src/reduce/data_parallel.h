// One process with several devices, like torch.nn.DataParallel: the baseline for several processes.
//
//   forward:   the first model's parameters and buffers are copied to every replica, the images
//              split into equal consecutive chunks, each chunk's logits computed on a thread per
//              device, then gathered on the first
//
// So the gradients are those of one model on the whole batch, except that BatchNorm's statistics
// are per chunk; the first chunk's update the running ones. Evaluation, and anything else without
// gradients, uses the first model only. Replicas on the CPU work too, without a speedup.
#pragma once

#include <memory>
#include <vector>

#include "saturate/model.h"

namespace saturate {

struct Replica {
  std::unique_ptr<Model> model;  // on `device`
  at::Device device;
};

// A model with the tensors of `first`, which also trains on `replicas`. All must be of the same
// kind. It has no stages to checkpoint, and must outlive its graphs. Fails with kUsage for a model
// with its own loss.
std::unique_ptr<Model> make_data_parallel(Replica first, std::vector<Replica> replicas);

}  // namespace saturate
