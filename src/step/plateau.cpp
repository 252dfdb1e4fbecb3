// "plateau", the only schedule with state.
#include <algorithm>
#include <limits>

#include "saturate/schedule.h"

namespace saturate {

Plateau::Plateau(const ScheduleOptions& options) : options_(options) {
  forget_best();
}

void Plateau::forget_best() {
  const double worst = std::numeric_limits<double>::infinity();
  best_ = options_.metric == PlateauMetric::kLoss ? worst : -worst;
  bad_ = 0;
}

void Plateau::observe(double metric) {
  const bool better = options_.metric == PlateauMetric::kLoss
                          ? metric < best_ * (1 - options_.threshold)
                          : metric > best_ * (1 + options_.threshold);
  if (better) best_ = metric;
  bad_ = better ? 0 : bad_ + 1;
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ > options_.patience) {
    factor_ = std::max(factor_ * options_.gamma, options_.final_lr);
    cooldown_ = options_.cooldown;
    bad_ = 0;
  }
}

std::vector<double> Plateau::state() const {
  return {best_, double(bad_), double(cooldown_), factor_};
}

void Plateau::load_state(const std::vector<double>& state) {
  best_ = state.at(0);
  bad_ = int64_t(state.at(1));
  cooldown_ = int64_t(state.at(2));
  factor_ = state.at(3);
}

}  // namespace saturate
