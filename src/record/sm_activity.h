// Utilisation of a GPU's multiprocessors (SMs), from NVML's GPU Performance Monitoring: Hopper and
// later. gpu_busy says that some kernel ran; this, how much of the GPU it used.
//
// Declarations follow the "NVML API Reference Guide", GPM functions.
#pragma once

#include <optional>

namespace saturate {

// Not for concurrent use. The library and the device must outlive this.
class SmActivity {
 public:
  // `library`: from dlopen; `device`: an nvmlDevice_t. read() returns nothing if either is too old.
  SmActivity(void* library, void* device);
  ~SmActivity();
  SmActivity(const SmActivity&) = delete;
  SmActivity& operator=(const SmActivity&) = delete;

  // Mean share of the SMs that had work since the last call; empty at the first.
  std::optional<double> read();

 private:
  using Result = int;    // nvmlReturn_t
  using Sample = void*;  // nvmlGpmSample_t
  struct MetricsGet;     // nvmlGpmMetricsGet_t
  Result (*take_)(void* device, Sample) = nullptr;
  Result (*compare_)(MetricsGet*) = nullptr;
  Result (*release_)(Sample) = nullptr;
  void* const device_;
  Sample before_ = nullptr, now_ = nullptr;
  bool has_before_ = false;
};

}  // namespace saturate
