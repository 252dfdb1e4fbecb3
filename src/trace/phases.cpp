// Names and sums of the ledger's phases, separate from the ledger: reading a run's records needs no
// torch.
#include <algorithm>
#include <numeric>

#include "saturate/ledger.h"

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

int64_t PhaseBytes::largest() const {
  return *std::max_element(bytes.begin(), bytes.end());
}

void PhaseBytes::merge(const PhaseBytes& other) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::max(bytes[i], other.bytes[i]);
}

}  // namespace saturate
