// Operations on all gradients, and diagnosis of failed runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "saturate/model.h"

namespace saturate {

// Scales the gradients, in place, by a common factor so that their total 2-norm is at most
// `max_norm`, like torch.nn.utils.clip_grad_norm_. Does not synchronise with the device. Returns
// the norm before, a scalar on their device. REQUIRES: gradients, all on one device.
at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm);

// The first of the model's parameters, then of its buffers (BatchNorm's statistics, which indicate
// earlier outputs), with a non-finite value; empty if all are finite. Waits for the device: for use
// before a run, or after a failure.
std::string first_non_finite(Model& model);
std::string first_non_finite(const std::vector<NamedTensor>& tensors);

}  // namespace saturate
