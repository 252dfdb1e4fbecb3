#include "saturate/early_stopping.h"

#include <cmath>

namespace saturate {

EarlyStopping::EarlyStopping(const TrainOptions& options) : options_(options) {}

bool EarlyStopping::observe(double value, int64_t step) {
  state_.not_finite = !std::isfinite(value);
  const double least = options_.min_delta;
  const bool better = !state_.best || (is_maximized(options_) ? value - least > *state_.best
                                                              : value + least < *state_.best);
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

bool is_maximized(const TrainOptions& options) {
  const bool loss = options.monitor == Monitor::kEvalLoss || options.monitor == Monitor::kTrainLoss;
  return options.monitor_mode == MonitorMode::kAuto ? !loss
                                                    : options.monitor_mode == MonitorMode::kMax;
}

}  // namespace saturate
