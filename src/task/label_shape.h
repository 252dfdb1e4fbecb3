// Outputs and labels of numbers, in one shape.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "saturate/data/error.h"

namespace saturate {

// outputs [N, ...] in the shape of labels [N, ...], and labels in the type of outputs. Fails with
// kUsage if a sample has different numbers of values.
inline std::pair<at::Tensor, at::Tensor> alike(const at::Tensor& outputs,
                                               const at::Tensor& labels) {
  if (outputs.numel() != labels.numel())
    fail(ErrorKind::kUsage,
         fmt::format("the model returns [{}] for a target of [{}]",
                     fmt::join(outputs.sizes(), ", "), fmt::join(labels.sizes(), ", ")),
         "model.name", "Use a model that returns as many values for a sample as the target has");
  return {outputs.reshape(labels.sizes()), labels.to(outputs.scalar_type())};
}

}  // namespace saturate
