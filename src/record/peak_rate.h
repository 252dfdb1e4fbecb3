// A device's peak compute rate.
#pragma once

#include <optional>
#include <string>

#include "saturate/data/step_options.h"

namespace saturate {

// A GPU's peak FLOP/s in dense matrix products at a precision, by NVIDIA's data sheet; empty for a
// GPU that is not in the table. `name` is NVML's. REQUIRES: `mode` is resolved.
std::optional<double> peak_flop_per_s(const std::string& name, PrecisionMode mode);

}  // namespace saturate
