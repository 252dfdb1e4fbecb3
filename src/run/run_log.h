// A run's records: made from its clocks and metrics, and passed to the observers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "record/metrics.h"
#include "record/observer_list.h"
#include "record/sinks.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/progress.h"
#include "trace/stream_clock.h"

namespace saturate {

// The largest resident memory of this process so far.
int64_t memory_peak_bytes();

class RunLog {
 public:
  struct Plan {
    std::string folder;
    Progress::Style style;
    int64_t epoch_steps, total_steps;
    RunPosition begin;   // not at zero in a resumed run
    bool writes = true;  // false: nothing, on disk or on the screen, but warnings
    int rank = 0;
    std::vector<ObserverList::Entry> observers = {};  // before those that write and show
    std::vector<std::string> metrics = {};            // names that MetricsRecord::values may have
    bool has_images = true;                           // else tensors
  };

  // Opens what may refuse, and changes no file. `env`, `ledger` and `streams` must outlive this;
  // without `streams` records lack its figures.
  RunLog(Env& env, const Recipe& recipe, const Plan& plan, Ledger& ledger,
         StreamClock* streams = nullptr);
  // Replaces `files` together with the records, of which those of the steps already made remain;
  // all stay as they are if this fails. Before the first event.
  void begin(std::vector<TextFile> files = {});

  // Wall time of the whole run, earlier processes included.
  double time_s();

  void begin_epoch(const RunPosition& position);
  // `part`: means since the last such call.
  void steps(const RunPosition& position, const Metrics& part, double lr);
  void epoch(const RunPosition& position, const Metrics& metrics, double lr);
  // `seconds`: its duration, of both weights if there is an average.
  void evaluation(const EvaluationEvent& event, double seconds);
  void end(const EndEvent& event);
  // Peaks of the whole run so far, in this process.
  const PhaseBytes& tensor_peaks();

  // For the sinks that show them.
  void images(int64_t step, const std::vector<TaggedImage>& images);
  void histograms(int64_t step, const std::vector<TaggedHistogram>& histograms);

  void show(const RunPosition& position, const std::string& details);
  void note(const std::string& text) { observers_.note(text); }
  void warn(const std::string& text) { observers_.warn(text); }
  // Names what was skipped since the last call with the same `warned`.
  void warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t& warned);
  ObserverList& observers() { return observers_; }

 private:
  MetricsRecord record(const std::string& kind, const RunPosition& position);
  void collect_peaks();
  // Times on the device since `mark`, which is set to now. Without phases in which `host` spent no
  // time since then: the device's last work before a mark, such as an evaluation, ends after it.
  std::optional<PhaseTimes> device_since(std::optional<PhaseTimes>& mark, const PhaseTimes& host);

  Env& env_;
  const std::string records_path_;  // empty: writes nothing
  const int64_t begin_step_;
  const double epochs_;
  const bool has_images_;
  const int64_t epoch_steps_;
  const double begin_s_;
  Ledger& ledger_;
  StreamClock* streams_;
  Progress progress_;
  ObserverList observers_;
  std::vector<std::shared_ptr<MetricsSink>> sinks_;
  PhaseTimes step_mark_, epoch_mark_;
  std::optional<PhaseTimes> device_step_mark_, device_epoch_mark_;  // at the same times
  std::vector<StreamTime> stream_mark_;                             // at step_mark_
  int64_t epoch_samples_ = 0;                        // of the whole run, at epoch_mark_
  PhaseBytes step_peaks_, epoch_peaks_, run_peaks_;  // since the marks, and of all
};

}  // namespace saturate
