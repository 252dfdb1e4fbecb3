// A run's output: its observers and their events; a trace and histograms.
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

  // Adds an observer of the library. Before start().
  void add_observer(std::shared_ptr<Observer> observer);
  // Opens all that may refuse the run, and changes no file. Then log().begin() makes the run's
  // files its own. REQUIRES, for all that follows but visit(): both were called, and close() was
  // not.
  void start(const RunPosition& position, int64_t total_steps);
  RunLog& log() { return *log_; }

  // Makes a step by `body`: writes the images, and counts the operations, of this process's first
  // one. `position`: before it.
  void watch_step(const DeviceBatch& batch, const RunPosition& position,
                  const std::function<void()>& body);
  RunningMetrics& running() { return running_; }
  void after_step(const RunPosition& position);
  // Names the samples that the loader has skipped since the last call.
  void warn_of_skipped();

  // Reads the metrics of the steps since the last call. Collective. Fails with kRun if the loss is
  // not finite.
  void read_metrics(const RunPosition& position);
  // The same, and writes a "step" record of all that was read since the last one.
  void record_steps(const RunPosition& position);
  // After the last step: fails with kRun if fp16 overflowed in every step of the run.
  void require_trained(const RunPosition& position);
  // Writes an "epoch" record, and returns its metrics; empty if no step was made.
  std::optional<Metrics> close_epoch(const RunPosition& position);
  void trace(int64_t step, bool ended_run);

  // Null without watch.samples.
  SampleGallery* gallery() { return gallery_.get(); }

  // Fills in the recorded figures so far.
  void fill(TrainResult& result);
  void close() { log_.reset(); }

  void visit(StateVisitor& visitor);

 private:
  class StepRecords;

  void add_telemetry();
  void prepare_watching(const RunPosition& position);
  DeviceBatch finished_copy(DeviceBatch batch);
  void write_histograms();
  void warn_once();
  void add(const Metrics& part, Metrics& sum) const;
  [[noreturn]] void fail_overflow(int64_t step);
  [[noreturn]] void fail_not_finite(int64_t step);

  RunContext& run_;
  RunInput& input_;
  Learner& learner_;
  std::vector<ObserverList::Entry> observers_;  // before those that write and show
  std::shared_ptr<TelemetryLog> telemetry_;     // null if it is off, as the next two
  std::unique_ptr<Tracer> tracer_;
  std::shared_ptr<SampleGallery> gallery_;
  std::unique_ptr<RunLog> log_;
  RunningMetrics running_;  // since they were read
  Metrics unrecorded_;      // read, since the last "step" record
  Metrics epoch_metrics_;   // of this epoch, up to the last "step" record
  int64_t first_step_ = 0;  // that this process began at
  int64_t step_ = 0;        // in progress, for its histograms
  int64_t sound_step_ = 0;  // the last one up to which a finite loss was read
  bool has_stepped_ = false;
  size_t skipped_ = 0;       // samples that the loader had skipped when it was last asked
  size_t warned_train_ = 0;  // of these, already named
  bool warned_uncompiled_ = false, warned_ungraphed_ = false, warned_overflow_ = false;
};

// The metrics of all ranks' samples; `own` in a single process.
Metrics all_reduce_metrics(RunContext& run, const Task& task, const Metrics& own);

}  // namespace saturate
