#include "step/precision.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "saturate/model.h"

namespace saturate {

void store_all_in_half(Model& model, PrecisionMode mode) {
  if (mode != PrecisionMode::kFp16O3) return;
  const c10::NoGradGuard no_grad;
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& [name, tensor] : tensors)
      if (tensor.scalar_type() == at::kFloat) tensor.set_data(tensor.to(at::kHalf));
}

}  // namespace saturate
