#include "record/telemetry_log.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "record/metrics.h"

namespace saturate {
namespace {

std::unique_ptr<Nvml> open_gpu(const TelemetryLog::Sources& sources) {
  if (!sources.gpu) return nullptr;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return Nvml::open(*sources.gpu, visible ? visible : "", sources.nvml_library);
}

}  // namespace

TelemetryLog::TelemetryLog(Env& env, Sources sources)
    : sources_(std::move(sources)), gpu_(open_gpu(sources_)), system_(env) {
  if (gpu_) peak_ = peak_flop_per_s(gpu_->name(), sources_.precision);
  thread_ = std::jthread([this](const std::stop_token& end) { run(end); });
  pthread_setname_np(thread_.native_handle(), "telemetry");
}

void TelemetryLog::run(const std::stop_token& end) {
  const auto interval = std::chrono::duration<double>(1 / sources_.hz);
  std::mutex idle;
  std::unique_lock waiting(idle);
  std::condition_variable_any never;
  while (!never.wait_for(waiting, end, interval, [&] { return end.stop_requested(); })) {
    try {
      const Telemetry reading = read();
      const MutexLock lock(mutex_);
      recent_.add(reading);
      all_.add(reading);
    } catch (const std::bad_alloc&) {  // skip one reading
    }
  }
}

Telemetry TelemetryLog::read() {
  Telemetry reading = system_.read();
  if (sources_.queue) reading.queue = sources_.queue();
  if (gpu_) gpu_->read(reading);
  return reading;
}

Telemetry TelemetryLog::with_rates(Telemetry mean, int64_t count, double seconds) const {
  if (count == 0 || seconds <= 0 || !sources_.is_only_gpu) return mean;
  if (flop_per_sample_) {
    const double flop_per_s = *flop_per_sample_ * double(count) / seconds;
    mean.tflop_per_s = flop_per_s * 1e-12;
    if (peak_) mean.peak_share = flop_per_s / *peak_;
  }
  if (mean.gpu_power_w) mean.joules_per_sample = *mean.gpu_power_w * seconds / double(count);
  return mean;
}

void TelemetryLog::on_record(MetricsRecord& record, ObserverContext&) {
  if (record.kind == "step")
    record.telemetry = take(record.images / sources_.processes, training_s(*record.phases));
  if (record.kind == "end") record.telemetry = whole();
}

Telemetry TelemetryLog::take(int64_t samples, double training_s) {
  samples_ += samples;
  training_s_ += training_s;
  TelemetryMean recent;
  {
    const MutexLock lock(mutex_);
    recent = std::exchange(recent_, {});
  }
  return with_rates(recent.mean(), samples, training_s);
}

Telemetry TelemetryLog::whole() const {
  const MutexLock lock(mutex_);
  return with_rates(all_.mean(), samples_, training_s_);
}

}  // namespace saturate
