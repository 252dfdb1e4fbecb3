#include "saturate/early_stopping.h"

#include <cmath>

namespace saturate {

EarlyStopping::EarlyStopping(const TrainOptions& options, bool higher_is_better)
    : options_(options), is_maximized_(is_maximized(options, higher_is_better)) {}

bool EarlyStopping::observe(double value, int64_t step) {
  state_.not_finite = !std::isfinite(value);
  const double least = options_.min_delta;
  const bool better =
      !state_.best || (is_maximized_ ? value - least > *state_.best : value + least < *state_.best);
  if (state_.not_finite || !better) {
    ++state_.waited;
    return false;
  }
  state_.best = value;
  state_.best_step = step;
  state_.waited = 0;
  return true;
}

bool EarlyStopping::should_stop() const {
  return options_.early_stop > 0 && (state_.not_finite || state_.waited >= options_.early_stop);
}

bool is_maximized(const TrainOptions& options, bool higher_is_better) {
  const bool loss = options.monitor.ends_with("_loss");
  return options.monitor_mode == MonitorMode::kAuto ? !loss && higher_is_better
                                                    : options.monitor_mode == MonitorMode::kMax;
}

}  // namespace saturate
