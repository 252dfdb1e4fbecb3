#include "saturate/observer.h"

#include <cxxabi.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace saturate {

std::span<const TelemetryField> telemetry_fields() {
  static constexpr std::array kFields = {
      TelemetryField{"cores", &Telemetry::cores},
      TelemetryField{"rss_bytes", &Telemetry::rss_bytes},
      TelemetryField{"disk_read_bytes_per_s", &Telemetry::disk_read_per_s},
      TelemetryField{"disk_write_bytes_per_s", &Telemetry::disk_write_per_s},
      TelemetryField{"net_receive_bytes_per_s", &Telemetry::net_receive_per_s},
      TelemetryField{"net_send_bytes_per_s", &Telemetry::net_send_per_s},
      TelemetryField{"queue_batches", &Telemetry::queue},
      TelemetryField{"tflop_per_s", &Telemetry::tflop_per_s},
      TelemetryField{"peak_share", &Telemetry::peak_share},
      TelemetryField{"gpu_busy", &Telemetry::gpu_busy},
      TelemetryField{"gpu_sm_active", &Telemetry::gpu_sm_active},
      TelemetryField{"gpu_memory_busy", &Telemetry::gpu_memory_busy},
      TelemetryField{"gpu_memory_bytes", &Telemetry::gpu_memory_bytes},
      TelemetryField{"gpu_power_w", &Telemetry::gpu_power_w},
      TelemetryField{"gpu_clock_mhz", &Telemetry::gpu_clock_mhz},
      TelemetryField{"gpu_celsius", &Telemetry::gpu_celsius},
      TelemetryField{"gpu_throttled", &Telemetry::gpu_throttled},
      TelemetryField{"joules_per_sample", &Telemetry::joules_per_sample}};
  return kFields;
}

std::string Observer::name() const {
  const char* const mangled = typeid(*this).name();
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), &std::free);
  return plain ? plain.get() : mangled;
}

}  // namespace saturate
