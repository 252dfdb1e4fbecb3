#include "saturate/early_stopping.h"

#include <cmath>

namespace saturate {

EarlyStopping::EarlyStopping(bool maximize, int patience, double min_delta)
    : maximize_(maximize), patience_(patience), min_delta_(min_delta) {}

bool EarlyStopping::observe(double value, int64_t step) {
  state_.not_finite = !std::isfinite(value);
  const bool better = !state_.best || (maximize_ ? value - min_delta_ > *state_.best
                                                 : value + min_delta_ < *state_.best);
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
  return patience_ > 0 && (state_.not_finite || state_.waited >= patience_);
}

bool is_maximized(const TrainOptions& options) {
  const bool loss = options.monitor == Monitor::kEvalLoss || options.monitor == Monitor::kTrainLoss;
  return options.monitor_mode == MonitorMode::kAuto ? !loss
                                                    : options.monitor_mode == MonitorMode::kMax;
}

EarlyStopping make_early_stopping(const TrainOptions& options) {
  return {is_maximized(options), options.early_stop, options.min_delta};
}

}  // namespace saturate
