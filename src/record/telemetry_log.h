// Samples telemetry on a separate thread, and averages it for a run's records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "record/nvml.h"
#include "record/system_reader.h"
#include "record/telemetry_mean.h"
#include "saturate/data/env.h"
#include "saturate/data/step_options.h"
#include "saturate/observer.h"

namespace saturate {

// Completes "step" and "end" records. Except for the sampling, belongs to the thread that runs the
// steps.
class TelemetryLog : public Observer {
 public:
  struct Sources {
    double hz = 1;                                   // readings a second, above 0
    std::function<double()> queue;                   // batches ready; called on the log's thread
    std::optional<int> gpu;                          // CUDA index; empty: none
    PrecisionMode precision = PrecisionMode::kFp32;  // resolved: selects the peak rate
    std::string nvml_library = "libnvidia-ml.so.1";  // loaded if there is a GPU
    int processes = 1;                               // that train together: this is of one of them
    bool is_only_gpu = true;  // of this process; else rates per sample are unknown
  };
  // `env` must outlive this.
  TelemetryLog(Env& env, Sources sources);

  // Floating-point operations of training on one image.
  void set_flop_per_sample(double flop) { flop_per_sample_ = flop; }

  void on_record(MetricsRecord& record, ObserverContext&) override;

  // Means since the last call, during which `samples` were trained on within `training_s`.
  Telemetry take(int64_t samples, double training_s);
  // Means since construction, over the periods passed to take().
  Telemetry whole() const;

 private:
  void run(const std::stop_token& end);
  Telemetry read();
  Telemetry with_rates(Telemetry mean, int64_t count, double seconds) const;

  const Sources sources_;
  const std::unique_ptr<Nvml> gpu_;  // used by the thread, except for its name
  SystemReader system_;              // used by the thread
  std::optional<double> peak_, flop_per_sample_;
  int64_t samples_ = 0;  // total reported through take()
  double training_s_ = 0;

  mutable Mutex mutex_;
  TelemetryMean recent_ GUARDED_BY(mutex_), all_ GUARDED_BY(mutex_);
  std::jthread thread_;  // last member: it uses the others
};

}  // namespace saturate
