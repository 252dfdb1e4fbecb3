// Machine activity during a run: cores, disk, network, the loader's queue, the GPU.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace saturate {

// Means over some time. Unknown values are empty: null in files, "n/a" in print.
struct Telemetry {
  std::optional<double> cores;              // CPU seconds per second, of this process
  std::optional<double> rss_bytes;          // resident memory of this process
  std::optional<double> disk_read_per_s;    // bytes read from storage by this process
  std::optional<double> disk_write_per_s;   // bytes written to storage by this process
  std::optional<double> net_receive_per_s;  // bytes, of all interfaces except loopback
  std::optional<double> net_send_per_s;
  std::optional<double> queue;             // batches ready in the loader
  std::optional<double> tflop_per_s;       // of convolutions and matrix products in training
  std::optional<double> peak_share;        // of the device's peak at the run's precision
  std::optional<double> gpu_busy;          // share of time in which a kernel ran
  std::optional<double> gpu_sm_active;     // share of its SMs that had work
  std::optional<double> gpu_memory_busy;   // share of time in which its memory was read or written
  std::optional<double> gpu_memory_bytes;  // in use on the GPU, by all processes
  std::optional<double> gpu_power_w;
  std::optional<double> gpu_clock_mhz;  // of its SMs
  std::optional<double> gpu_celsius;
  std::optional<double> gpu_throttled;      // share of readings with throttled clocks
  std::optional<double> joules_per_sample;  // of the GPU, per image trained on
  std::string throttle_reasons;             // "power cap, heat"; empty: none, or unknown
};

struct TelemetryField {
  const char* name;  // in metrics.jsonl and everywhere else
  std::optional<double> Telemetry::*member;
};

// All numbers of a Telemetry, in the order above.
std::span<const TelemetryField> telemetry_fields();

}  // namespace saturate
