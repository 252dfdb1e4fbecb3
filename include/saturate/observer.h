// SPDX-License-Identifier: BSD-3-Clause
// Observers: what is called after each step, epoch and evaluation of a run, and at its end. All
// that a run writes and shows while it trains (metrics.jsonl, TensorBoard, CSV, Prometheus,
// progress, telemetry, samples) and early stopping are observers of this interface; a program adds
// its own by TrainerOptions::observers.
//
//   after a step        after_step(); if watch.every says so, on_record() of kind "step"
//   before a checkpoint on_record() of kind "step", if there are steps since the last one
//   after an epoch      the same, then after_epoch(), then on_record() of kind "epoch"
//   after an evaluation after_evaluation(), then on_record() of kind "eval"
//   at the end          at_end(), then on_record() of kind "end"; neither if the run fails
//
// Each call reaches the observers in order: first early stopping, samples and telemetry, then the
// program's in the order given, then those that write and show.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "saturate/ledger.h"
#include "saturate/metrics.h"

namespace saturate {

// Machine activity: cores, disk, network, the loader's queue, the GPU. Means over some time.
// Unknown values are empty: null in files, "n/a" in print.
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

// The position in a run.
struct RunPosition {
  int64_t step = 0;     // steps completed
  int64_t epoch = 0;    // the epoch the next batch belongs to
  int64_t batch = 0;    // index of the next batch in the epoch
  int64_t samples = 0;  // samples trained on so far
  double time_s = 0;    // wall time of the run so far, at its last checkpoint
};

// The results of one evaluation.
struct Evaluation {
  int64_t step = 0;              // steps completed when it was made
  Metrics metrics;               // of the averaged weights, if there is an average
  std::optional<Metrics> plain;  // of the weights themselves, if metrics are the average's
};

enum class RunEnd {
  kDone,
  kInterrupted,  // by should_stop
  kEarlyStop,    // train.early_stop
  kStopped,      // ObserverContext::stop()
  kTimeLimit,    // train.max_minutes
  kFailed,       // by an error
};

// One line of metrics.jsonl. Unknown values are null in the file.
struct MetricsRecord {
  std::string kind;  // "step", "epoch", "eval" or "end"
  int64_t step = 0;  // steps completed
  double epoch = 0;  // epochs completed, including the fraction of the present one
  int64_t samples = 0;
  double time_s = 0;  // since the run began, including earlier parts of a resumed run
  // Means over the record's period: the steps since the last such record, or the evaluation.
  std::optional<double> loss, accuracy, accuracy5, lr, images_per_s;
  std::optional<double> mean_iou;  // for segmentation, else omitted
  // The task's other metrics, each a key of the line; "plain_NAME" as below.
  std::vector<MetricValue> values;
  // "eval" with train.ema: of the weights themselves, while loss and accuracy are the average's.
  std::optional<double> plain_loss, plain_accuracy;
  std::optional<PhaseTimes> phases;          // seconds over the same period
  std::optional<int64_t> memory_peak_bytes;  // of the process, on the host, so far
  // Peak bytes of tensors on the device over the same period; phases without any are omitted.
  std::optional<PhaseBytes> tensor_peak_bytes;
  std::optional<Telemetry> telemetry;  // "step": over the same period; "end": of this process
  // Likewise for a GPU, as far as its streams had got at the time of the record; else empty.
  std::optional<PhaseTimes> device_phases;  // on the stream of the step: see DevicePhases
  std::vector<StreamTime> streams;
  std::vector<std::pair<std::string, double>> scalars;  // ObserverContext::log(): keys of the line
  int64_t images = 0;             // "step": trained on in the period, by all ranks; not in the file
  PhaseTimes phases_so_far = {};  // seconds since this process began the run; not in the file
};

struct StepEvent {
  const RunPosition& position;  // after the step
  double lr;
  // The step's metrics are read next, for which a GPU is waited for: other reads of it cost little.
  bool record_due;
};

struct EpochEvent {
  const RunPosition& position;
  const Metrics& metrics;  // of the epoch's steps, of all ranks
};

struct EvaluationEvent {
  const RunPosition& position;
  const Evaluation& found;  // of all ranks
  // False for the last evaluation of a run that ends early and may be resumed. An uninterrupted run
  // does not make it, so nothing that the resumed run does should depend on it.
  bool counts;
};

struct EndEvent {
  const RunPosition& position;
  RunEnd end;
  const std::optional<Evaluation>& last;  // of the weights that the run ends with
};

// The run, as an observer may act on it. Valid during the call.
class ObserverContext {
 public:
  // Adds a scalar to the record that follows (see above; in on_record(), to that record): a key of
  // rank 0's line in metrics.jsonl, and "NAME/train", "NAME/epoch", "NAME/eval" or "NAME/end" in
  // TensorBoard. The last value of a name counts. Not finite: null. Fails with kUsage on an empty
  // name, or one that records have.
  virtual void log(const std::string& name, double value) = 0;
  // Ends the run after this step, with an evaluation and a checkpoint from which it can be resumed
  // (RunEnd::kStopped). If several ranks train, any of them may call this, and all end together
  // after the next step. No effect from at_end() on, or after the last step.
  virtual void stop(const std::string& reason) = 0;
  // A line above the progress bar, on rank 0; warn() writes on every rank, also with progress off.
  virtual void note(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
  virtual int rank() const = 0;

 protected:
  virtual ~ObserverContext() = default;
};

// All methods are called on the thread that trains, on every rank, each event once in a process; a
// run resumed from a checkpoint repeats none before it. A step waits for the host's work here, and
// for the GPU if a method reads from it: see StepEvent::record_due. An exception ends the run with
// an error that names the observer; on other ranks as when any rank fails.
class Observer {
 public:
  virtual ~Observer() = default;
  // For error messages; the default is the class's name.
  virtual std::string name() const;

  virtual void after_step(const StepEvent&, ObserverContext&) {}
  virtual void after_epoch(const EpochEvent&, ObserverContext&) {}
  virtual void after_evaluation(const EvaluationEvent&, ObserverContext&) {}
  virtual void at_end(const EndEvent&, ObserverContext&) {}
  // A record before it is written, which has the losses of the steps; what is empty may be filled.
  virtual void on_record(MetricsRecord&, ObserverContext&) {}
};

}  // namespace saturate
