// Effects of a precision mode: autocast for a scope, and whether TF32 is used.
#pragma once

#include <optional>
#include <string_view>

#include "model/autograd.h"
#include "saturate/data/step_options.h"

namespace saturate {

class Model;

// The reduced-precision type of a mode, if it has one.
inline std::optional<at::ScalarType> reduced_type(PrecisionMode mode) {
  if (mode == PrecisionMode::kBf16 || mode == PrecisionMode::kBf16O2) return at::kBFloat16;
  if (mode == PrecisionMode::kFp16 || mode == PrecisionMode::kFp16O2 ||
      mode == PrecisionMode::kFp16O3)
    return at::kHalf;
  return std::nullopt;
}

// Whether a GPU of that architecture ("sm_90"; empty: unknown) computes in bf16, as from Ampere on.
inline bool gpu_has_bf16(std::string_view architecture) {
  return architecture.size() != 5 || architecture >= "sm_80";
}

// Whether float matrix products may use TF32 on a GPU: fp32 mode is exact.
inline bool uses_tf32(PrecisionMode mode, bool wanted) {
  return wanted && mode != PrecisionMode::kFp32;
}

// Whether weights are stored in that type, with fp32 master weights.
inline bool has_master_weights(PrecisionMode mode) {
  return mode == PrecisionMode::kBf16O2 || mode == PrecisionMode::kFp16O2;
}

// If the mode keeps no fp32 values (fp16-o3): converts the model's weights and statistics to fp16,
// in place. To be called before an optimizer is created.
void store_all_in_half(Model& model, PrecisionMode mode);

// Restores the previous state. Clears the cache of cast weights at the end of the outermost scope,
// as the weights are about to change.
class AutocastScope {
 public:
  AutocastScope(PrecisionMode precision, at::DeviceType device) : before_(device) {
    const auto type = reduced_type(precision);
    if (type) at::autocast::set_autocast_dtype(device, *type);
    at::autocast::set_autocast_enabled(device, type.has_value());
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }

 private:
  AutocastStateScope before_;
};

}  // namespace saturate
