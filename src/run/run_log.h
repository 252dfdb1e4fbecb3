// A run's records in metrics.jsonl, and its progress on stderr.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/metrics.h"
#include "record/sinks.h"
#include "record/telemetry_log.h"
#include "run/checkpoint.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/progress.h"
#include "trace/stream_clock.h"

namespace saturate {

int64_t memory_peak_bytes();

class RunLog {
 public:
  struct Plan {
    std::string folder;
    Progress::Style style;
    int64_t epoch_steps, total_steps;
    RunPosition begin;   // not at zero in a resumed run
    bool writes = true;  // false: nothing, on disk or on the screen, but warnings
    int processes = 1;   // that make the run: telemetry is of this one alone
  };

  // `ledger`, `telemetry` and `streams` must outlive this; where one of the latter is null its
  // figures are left out.
  RunLog(Env& env, const Recipe& recipe, const Plan& plan, Ledger& ledger,
         TelemetryLog* telemetry = nullptr, StreamClock* streams = nullptr);

  // Wall time of the whole run, earlier processes included.
  double time_s();

  void begin_epoch(const RunPosition& position);
  // `part`: means since the last such call.
  void steps(const RunPosition& position, const Metrics& part, double lr);
  void epoch(const RunPosition& position, const Metrics& metrics, double lr);
  // `seconds`: what it took, of both weights where there is an average.
  void evaluation(const RunPosition& position, const Evaluation& found, double seconds);
  void end(const RunPosition& position, const std::optional<Evaluation>& last);
  // Peaks of the whole run so far, in this process.
  const PhaseBytes& tensor_peaks();

  // For the sinks that show them.
  void images(int64_t step, const std::vector<TaggedImage>& images);
  void histograms(int64_t step, const std::vector<TaggedHistogram>& histograms);

  void show(const RunPosition& position) { progress_.update(position.step, details_); }
  void show(const RunPosition& position, const std::string& details);
  void note(const std::string& text) { progress_.note(text); }
  void warn(const std::string& text) { progress_.warn("saturate: warning: " + text); }
  // Names what was skipped since the last call with the same `warned`.
  void warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t& warned);

 private:
  MetricsRecord record(const std::string& kind, const RunPosition& position);
  void write(const MetricsRecord& record);
  void to_sinks(const std::function<void(MetricsSink&)>& tell);
  void collect_peaks();
  // On the device, since `mark`, which becomes now. Without phases that `host` did not spend since
  // then: what the device does last before a mark, such as an evaluation, ends after it.
  std::optional<PhaseTimes> device_since(std::optional<PhaseTimes>& mark, const PhaseTimes& host);

  const Plan plan_;
  const double epochs_;
  Ledger& ledger_;
  TelemetryLog* telemetry_;
  StreamClock* streams_;
  std::optional<MetricsWriter> metrics_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;  // without those that failed
  Progress progress_;
  PhaseTimes step_mark_, epoch_mark_;
  std::optional<PhaseTimes> device_step_mark_, device_epoch_mark_;  // at the same times
  std::vector<StreamTime> stream_mark_;                             // at step_mark_
  int64_t epoch_samples_ = 0;                        // of the whole run, at epoch_mark_
  PhaseBytes step_peaks_, epoch_peaks_, run_peaks_;  // since the marks, and of all
  std::string details_;
};

}  // namespace saturate
