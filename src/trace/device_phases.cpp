#include "trace/device_phases.h"

#include <c10/core/Device.h>

#include <algorithm>

namespace saturate {

DevicePhases::DevicePhases(const std::function<std::unique_ptr<TimeMark>()>& make_mark,
                           size_t marks)
    : ring_(std::max<size_t>(2, marks)) {
  for (Slot& slot : ring_) {
    slot.mark = make_mark();
    slot.mark->place();
  }
}

void DevicePhases::enter(Phase phase) noexcept {
  if (failed_ || phase == Phase::kOther || phase == current_) return;
  try {
    place(phase);
  } catch (...) {
    failed_ = true;
  }
}

// Queries a quarter of the ring at once, and only when half of it is in use: a query costs the host
// about as much as a mark.
void DevicePhases::place(Phase phase) {
  const size_t quarter = std::max<size_t>(1, ring_.size() / 4);
  if (2 * placed_ >= ring_.size() && placed_ > quarter && slot(quarter).mark->reached())
    take(quarter);
  if (placed_ == ring_.size()) return skip_interval();
  slot(placed_).mark->place();
  slot(placed_).phase = phase;
  slot(placed_).counts = true;
  ++placed_;
  current_ = phase;
}

void DevicePhases::skip_interval() noexcept {
  if (placed_ > 0) slot(placed_ - 1).counts = false;
  current_.reset();
}

void DevicePhases::take(size_t spans) {
  for (; spans > 0; --spans) {
    const Slot& begin = slot(0);
    if (begin.counts)
      times_.seconds[size_t(begin.phase)] +=
          std::max(0.0, slot(1).mark->seconds_since(*begin.mark));
    oldest_ = (oldest_ + 1) % ring_.size();
    --placed_;
  }
}

PhaseTimes DevicePhases::times() noexcept {
  try {
    while (!failed_ && placed_ > 1 && slot(1).mark->reached()) take(1);
  } catch (...) {
    failed_ = true;
  }
  return times_;
}

std::unique_ptr<DevicePhases> make_device_phases(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<DevicePhases>([device] { return make_device_mark(device); });
}

}  // namespace saturate
