// What a precision mode sets: autocast for a scope, TF32 for the process.
#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

#include "saturate/step_options.h"

namespace saturate {

class Model;

// Whether products of float tensors on a GPU may round their factors to TF32. Backward, which
// follows the scope of the forward, needs it too: hence no scope. Does nothing on the CPU.
void allow_tf32(bool allowed);

// The type that a mode computes in where fp32 is not needed, if it is another.
inline std::optional<at::ScalarType> reduced_type(PrecisionMode mode) {
  if (mode == PrecisionMode::kBf16 || mode == PrecisionMode::kBf16O2) return at::kBFloat16;
  if (mode == PrecisionMode::kFp16 || mode == PrecisionMode::kFp16O2 ||
      mode == PrecisionMode::kFp16O3)
    return at::kHalf;
  return std::nullopt;
}

// Whether products of float tensors may be TF32 on a GPU: fp32 is exact.
inline bool uses_tf32(PrecisionMode mode, bool wanted) {
  return wanted && mode != PrecisionMode::kFp32;
}

// Whether weights are stored in that type, with fp32 masters.
inline bool has_masters(PrecisionMode mode) {
  return mode == PrecisionMode::kBf16O2 || mode == PrecisionMode::kFp16O2;
}

// Where the mode keeps no number of the model in fp32 (fp16-o3): its weights and statistics become
// fp16, in place. Before an optimizer sees them.
void store_all_in_half(Model& model, PrecisionMode mode);

// Restores what was set before. Clears the cache of cast weights at the end of the outermost scope,
// as the weights are about to change.
class AutocastScope {
 public:
  AutocastScope(PrecisionMode precision, at::DeviceType device)
      : device_(device),
        before_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    const auto type = reduced_type(precision);
    if (type) at::autocast::set_autocast_dtype(device, *type);
    at::autocast::set_autocast_enabled(device, type.has_value());
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
