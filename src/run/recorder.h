// A run's output: its observers and what they are told; a trace and histograms.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/sample_gallery.h"
#include "record/telemetry_log.h"
#include "run/learner.h"
#include "run/run_log.h"
#include "trace/tracer.h"

namespace saturate {

class Recorder {
 public:
  Recorder(RunContext& run, RunInput& input, Learner& learner);
  ~Recorder();

  // One of the run's own that decides or measures. Before start().
  void add_observer(std::shared_ptr<Observer> observer);
  // Opens everything. Nothing below but visit() before it; nothing at all after close().
  void start(const RunPosition& position, int64_t total_steps);
  RunLog& log() { return *log_; }

  // Makes a step by `body`: of this process's first one the images are kept, and the operations
  // counted. `position`: before it.
  void watch_step(const DeviceBatch& batch, const RunPosition& position,
                  const std::function<void()>& body);
  RunningMetrics& running() { return running_; }
  void after_step(const RunPosition& position);

  // Reads what the steps since the last time counted. Collective. Fails with kRun where the loss is
  // not finite.
  void read_metrics(const RunPosition& position);
  // The same, and a "step" record of what was read since the last one.
  void record_steps(const RunPosition& position);
  // An "epoch" record; its metrics, empty where no step was made.
  std::optional<Metrics> close_epoch(const RunPosition& position);
  void trace(int64_t step, bool ended_run);

  // An evaluation: its images, then its results.
  void begin_evaluation();
  void see_evaluated(const DeviceBatch& batch, const at::Tensor& logits);
  void write_evaluation(const RunPosition& position, const Evaluation& found, double seconds,
                        bool counts);
  // By class. `cells`: see Answers; not read where the run segments.
  void write_classes(const Metrics& found, const at::Tensor& cells, int64_t outputs, int64_t step);

  // Fills in the recorded figures so far.
  void fill(TrainResult& result);
  void write_end(const RunPosition& position, RunEnd end, const std::optional<Evaluation>& last);
  void close() { log_.reset(); }

  void visit(StateVisitor& visitor);

 private:
  class StepRecords;

  void add_telemetry();
  void prepare_watching(const RunPosition& position);
  DeviceBatch finished_copy(DeviceBatch batch);
  void write_histograms();
  void warn_once();
  [[noreturn]] void fail_overflow(int64_t step);
  [[noreturn]] void fail_not_finite(int64_t step);

  RunContext& run_;
  RunInput& input_;
  Learner& learner_;
  std::vector<ObserverList::Entry> observers_;  // before those that write and show
  std::shared_ptr<TelemetryLog> telemetry_;     // null where it is off, as the next two
  std::unique_ptr<Tracer> tracer_;
  std::shared_ptr<SampleGallery> gallery_;
  std::unique_ptr<RunLog> log_;
  RunningMetrics running_;  // since they were read
  Metrics unrecorded_;      // read, since the last "step" record
  Metrics epoch_metrics_;   // of this epoch, up to the last "step" record
  int64_t first_step_ = 0;  // that this process began at
  int64_t step_ = 0;        // under way, for its histograms
  int64_t sound_step_ = 0;  // the last one that a finite loss was read by
  bool has_stepped_ = false;
  size_t warned_train_ = 0;  // skipped samples already named
  bool warned_uncompiled_ = false, warned_ungraphed_ = false, warned_overflow_ = false;
};

// Sums over all processes; the same of one.
Metrics all_reduce_metrics(RunContext& run, const Metrics& own);

}  // namespace saturate
