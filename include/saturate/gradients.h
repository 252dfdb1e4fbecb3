// What is done to all gradients together, and what is looked for when a run goes wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "saturate/model.h"

namespace saturate {

// Scales the gradients, in place, by the one factor that brings their common 2-norm to at most
// `max_norm`, as torch.nn.utils.clip_grad_norm_ does. Does not synchronise with the device. Gives
// the norm before, a scalar beside the gradients. REQUIRES: gradients, all of one device.
at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm);

// The first of the model's parameters, then of its buffers (BatchNorm's statistics, which tell of
// the outputs before them), that holds a value that is not finite; empty where all are finite.
// Waits for the device: for use before a run, or after a failure.
std::string first_non_finite(Model& model);
std::string first_non_finite(const std::vector<NamedTensor>& tensors);

}  // namespace saturate
