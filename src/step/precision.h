// What a precision mode sets: autocast for a scope, TF32 for the process.
#pragma once

#include <ATen/autocast_mode.h>

#include "saturate/recipe.h"

namespace saturate {

// Whether products of float tensors on a GPU may round their factors to TF32. Backward, which
// follows the scope of the forward, needs it too: hence no scope. Does nothing on the CPU.
void allow_tf32(bool allowed);

// Restores what was set before. Clears the cache of cast weights at the end of the outermost scope,
// as the weights are about to change.
class AutocastScope {
 public:
  AutocastScope(PrecisionMode precision, at::DeviceType device)
      : device_(device),
        before_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    const bool half = precision == PrecisionMode::kFp16, brain = precision == PrecisionMode::kBf16;
    if (half || brain) at::autocast::set_autocast_dtype(device, half ? at::kHalf : at::kBFloat16);
    at::autocast::set_autocast_enabled(device, half || brain);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool before_;
  at::ScalarType dtype_before_;
};

}  // namespace saturate
