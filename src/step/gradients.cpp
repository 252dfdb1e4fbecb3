#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "saturate/optimizer.h"

namespace saturate {

at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm) {
  const c10::NoGradGuard no_grad;
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)));
  // Multiplies by 1 if nothing is clipped: a branch would have to wait for the device.
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1);
  at::_foreach_mul_(gradients, factor);
  return norm;
}

std::string first_non_finite(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (!at::isfinite(tensor).all().item<bool>()) return name;
  return "";
}

std::string first_non_finite(Model& model) {
  const std::string name = first_non_finite(model.parameters());
  return name.empty() ? first_non_finite(model.buffers()) : name;
}

}  // namespace saturate
