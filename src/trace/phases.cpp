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

void PhaseTimes::add(const PhaseTimes& other, double factor) {
  for (size_t i = 0; i < seconds.size(); ++i) seconds[i] += factor * other.seconds[i];
  network_wait += factor * other.network_wait;
}

PhaseTimes PhaseTimes::operator-(const PhaseTimes& earlier) const {
  PhaseTimes difference = *this;
  difference.add(earlier, -1);
  return difference;
}

int64_t PhaseBytes::largest() const {
  return *std::max_element(bytes.begin(), bytes.end());
}

void PhaseBytes::merge(const PhaseBytes& other) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::max(bytes[i], other.bytes[i]);
}

}  // namespace saturate
