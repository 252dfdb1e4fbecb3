// What a device can compute at most.
#pragma once

#include <optional>
#include <string>

#include "saturate/step_options.h"

namespace saturate {

// Floating-point operations a second of a GPU in dense matrix products at a precision, by the
// maker's data sheet; empty for a GPU that is not in the table. `name` is NVML's. REQUIRES: `mode`
// is resolved.
std::optional<double> peak_flop_per_s(const std::string& name, PrecisionMode mode);

}  // namespace saturate
