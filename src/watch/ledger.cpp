#include "saturate/ledger.h"

#include <numeric>
#include <utility>

namespace saturate {

std::string_view phase_name(Phase phase) {
  static constexpr std::array<std::string_view, kPhaseCount> kNames = {
      "wait",      "copy", "augment",    "forward",    "backward", "reduce",
      "optimizer", "host", "checkpoint", "evaluation", "other"};
  return kNames[size_t(phase)];
}

double PhaseTimes::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

PhaseTimes PhaseTimes::operator-(const PhaseTimes& earlier) const {
  PhaseTimes difference;
  for (size_t i = 0; i < seconds.size(); ++i)
    difference.seconds[i] = seconds[i] - earlier.seconds[i];
  return difference;
}

Ledger::Ledger(Env& env) : env_(env), since_ns_(env.now_ns()) {}

Phase Ledger::enter(Phase phase) {
  const int64_t now = env_.now_ns();
  spent_ns_[size_t(current_)] += now - std::exchange(since_ns_, now);
  return std::exchange(current_, phase);
}

PhaseTimes Ledger::times() {
  enter(current_);
  PhaseTimes times;
  for (size_t i = 0; i < spent_ns_.size(); ++i) times.seconds[i] = double(spent_ns_[i]) * 1e-9;
  return times;
}

}  // namespace saturate
