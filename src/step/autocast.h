// Autocast for a scope.
#pragma once

#include <ATen/autocast_mode.h>

#include "saturate/recipe.h"

namespace saturate {

// Restores what was set before. Clears the cache of cast weights at the end of the outermost scope,
// as the weights are about to change.
class AutocastScope {
 public:
  AutocastScope(PrecisionMode precision, at::DeviceType device)
      : device_(device), before_(at::autocast::is_autocast_enabled(device)) {
    if (precision == PrecisionMode::kBf16) at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, precision == PrecisionMode::kBf16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool before_;
};

}  // namespace saturate
