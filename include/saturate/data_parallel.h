// One process over several devices, as torch.nn.DataParallel: the baseline of several processes.
//
//   forward:   the first model's parameters and buffers are copied to every replica, the images
//              shared out in equal chunks in order, and each chunk's logits computed on a thread
//              for each device, then put together on the first
//   backward:  each replica's gradients, on the same threads, summed on the first device
//
// So the gradients are those of one model on the whole batch, but that BatchNorm takes its
// statistics over a chunk; the first chunk's make the running ones. Evaluation, and all else
// without gradients, is the first model's alone. Replicas on the CPU work too, and gain nothing.
#pragma once

#include <memory>
#include <vector>

#include "saturate/model.h"

namespace saturate {

struct Replica {
  std::unique_ptr<Model> model;  // on `device`
  at::Device device;
};

// A model whose tensors are `first`'s, and which trains on `replicas` too. All must be of the same
// kind. It has no stages() to checkpoint, and must outlive the graphs made by it. Fails with kUsage
// on a model with a loss of its own (own_model.h).
std::unique_ptr<Model> make_data_parallel(Replica first, std::vector<Replica> replicas);

}  // namespace saturate
