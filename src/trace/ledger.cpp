#include "saturate/ledger.h"

#include <algorithm>
#include <utility>

#include "saturate/memory.h"
#include "trace/device_phases.h"

namespace saturate {

Ledger::Ledger(Env& env, TensorMemory* memory)
    : env_(env), memory_(memory), since_ns_(env.now_ns()) {
  if (memory_) memory_->take_peak();
}

void Ledger::set_enabled(bool enabled) {
  if (enabled == enabled_) return;
  enter(Phase::kOther);
  enabled_ = enabled;
  if (device_) device_->skip_interval();
  charge(Phase::kOther);
}

Phase Ledger::enter(Phase phase) {
  if (!enabled_) return current();
  const Phase before = current();
  charge(phase);
  current_.store(phase, std::memory_order_relaxed);
  if (device_) device_->enter(phase);
  return before;
}

void Ledger::charge(Phase next) {
  const Phase before = current();
  const int64_t now = env_.now_ns(), since = std::exchange(since_ns_, now);
  spent_ns_[size_t(before)] += now - since;
  if (observer_) observer_->charged(before, next, since, now);
  if (memory_) {
    int64_t& peak = peaks_.bytes[size_t(before)];
    peak = std::max(peak, memory_->take_peak());
  }
}

PhaseBytes Ledger::take_memory_peaks() {
  charge(current());
  return std::exchange(peaks_, {});
}

// Disabled, the present phase is kOther.
void Ledger::add_network_wait(int64_t ns) {
  if (current() == Phase::kWait) network_wait_ns_ += ns;
}

PhaseTimes Ledger::times() {
  charge(current());
  PhaseTimes times;
  for (size_t i = 0; i < spent_ns_.size(); ++i) times.seconds[i] = double(spent_ns_[i]) * 1e-9;
  // At most: the loader does not use `env_`'s clock.
  times.network_wait = std::min(double(network_wait_ns_) * 1e-9, times[Phase::kWait]);
  return times;
}

std::optional<PhaseTimes> Ledger::device_times() {
  return device_ ? std::optional(device_->times()) : std::nullopt;
}

}  // namespace saturate
