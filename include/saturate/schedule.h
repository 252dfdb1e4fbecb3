// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "saturate/recipe.h"
#include "saturate/registry.h"

namespace saturate {

// `progress` runs from 0 at the end of warm-up to 1 after the last step; the result is the factor
// on optimizer.lr, between 1 and `final_lr`.
using ScheduleCurve = double (*)(double progress, double final_lr);
std::span<const RegistryEntry<ScheduleCurve>> schedules();

// Factor on optimizer.lr for step `step` (from 0) of `total` steps: a linear ramp
// (step + 1) / warmup over the first `warmup` steps, then the schedule's curve over the rest.
// Fails with kUsage on an unknown name. REQUIRES: total > 0.
double schedule_factor(const ScheduleOptions& options, int64_t step, int64_t warmup, int64_t total);

}  // namespace saturate
