#include "record/telemetry_log.h"

#include <pthread.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "record/metrics.h"
#include "record/nvml.h"
#include "record/peak_rate.h"
#include "record/system_reader.h"
#include "record/telemetry_mean.h"

namespace saturate {
namespace {

std::unique_ptr<Nvml> open_gpu(const TelemetryLog::Sources& sources) {
  if (!sources.gpu) return nullptr;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return Nvml::open(*sources.gpu, visible ? visible : "", sources.nvml_library);
}

}  // namespace

struct TelemetryLog::State {
  State(Env& env, Sources sources_in)
      : sources(std::move(sources_in)), gpu(open_gpu(sources)), system(env) {
    if (gpu) peak = peak_flop_per_s(gpu->name(), sources.precision);
    thread = std::thread([this] { run(); });
    pthread_setname_np(thread.native_handle(), "telemetry");
  }
  ~State() {
    {
      std::lock_guard lock(mutex);
      ending = true;
    }
    ending_changed.notify_all();
    thread.join();
  }

  void run() {
    const auto interval = std::chrono::duration<double>(1 / sources.hz);
    std::unique_lock lock(mutex);
    while (!ending_changed.wait_for(lock, interval, [this] { return ending; })) {
      lock.unlock();
      std::optional<Telemetry> reading;
      try {
        reading = read();
      } catch (const std::bad_alloc&) {  // skip one reading
      }
      lock.lock();
      if (!reading) continue;
      recent.add(*reading);
      all.add(*reading);
    }
  }

  Telemetry read() {
    Telemetry reading = system.read();
    if (sources.queue) reading.queue = sources.queue();
    if (gpu) gpu->read(reading);
    return reading;
  }

  Telemetry with_rates(Telemetry mean, int64_t count, double seconds) const {
    if (count == 0 || seconds <= 0) return mean;
    if (flop_per_sample) {
      const double flop_per_s = *flop_per_sample * double(count) / seconds;
      mean.tflop_per_s = flop_per_s * 1e-12;
      if (peak) mean.peak_share = flop_per_s / *peak;
    }
    if (mean.gpu_power_w) mean.joules_per_sample = *mean.gpu_power_w * seconds / double(count);
    return mean;
  }

  const Sources sources;
  const std::unique_ptr<Nvml> gpu;  // used by the thread, except for its name
  SystemReader system;              // used by the thread
  std::optional<double> peak, flop_per_sample;
  int64_t samples = 0;  // total reported through take()
  double training_s = 0;

  mutable std::mutex mutex;
  std::condition_variable ending_changed;
  bool ending = false;        // guarded by mutex
  TelemetryMean recent, all;  // guarded by mutex
  std::thread thread;
};

TelemetryLog::TelemetryLog(Env& env, Sources sources)
    : state_(std::make_unique<State>(env, std::move(sources))) {}
TelemetryLog::~TelemetryLog() = default;

void TelemetryLog::set_flop_per_sample(double flop) {
  state_->flop_per_sample = flop;
}

void TelemetryLog::on_record(MetricsRecord& record, ObserverContext&) {
  if (record.kind == "step")
    record.telemetry = take(record.images / state_->sources.processes, training_s(*record.phases));
  if (record.kind == "end") record.telemetry = whole();
}

Telemetry TelemetryLog::take(int64_t samples, double training_s) {
  state_->samples += samples;
  state_->training_s += training_s;
  TelemetryMean recent;
  {
    std::lock_guard lock(state_->mutex);
    recent = std::exchange(state_->recent, {});
  }
  return state_->with_rates(recent.mean(), samples, training_s);
}

Telemetry TelemetryLog::whole() const {
  std::lock_guard lock(state_->mutex);
  return state_->with_rates(state_->all.mean(), state_->samples, state_->training_s);
}

}  // namespace saturate
