// Marks in a device's streams through c10's event interface: the same for all device types, so it
// compiles without CUDA.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trace/device_phases.h"
#include "trace/stream_clock.h"

namespace saturate {
namespace {

class DeviceMark : public TimeMark {
 public:
  explicit DeviceMark(const c10::Device& device)
      : device_(device), event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}

  void place() override {
    event_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  bool reached() const override { return event_.query(); }
  double seconds_since(const TimeMark& earlier) const override {
    return static_cast<const DeviceMark&>(earlier).event_.elapsedTime(event_) * 1e-3;
  }

 private:
  const c10::Device device_;
  c10::Event event_;  // with timing enabled
};

}  // namespace

std::unique_ptr<StreamClock> make_stream_clock(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<StreamClock>([device] { return std::make_unique<DeviceMark>(device); });
}

std::unique_ptr<DevicePhases> make_device_phases(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<DevicePhases>([device] { return std::make_unique<DeviceMark>(device); });
}

}  // namespace saturate
