// The figures of a report, computed from a run's records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/run_reading.h"

namespace saturate {

struct RunFigures {
  // The last evaluation's, or those of the weights that the run ended with; training's if there was
  // no evaluation.
  std::optional<double> accuracy, accuracy5, mean_iou, loss;
  std::vector<MetricValue> values;  // the task's other metrics
  bool held_out = false;
  std::optional<double> best_accuracy;  // of all evaluations
  double time_s = 0, epochs = 0;
  int64_t steps = 0;
  std::optional<double> images_per_s;  // in training: without evaluation and checkpoints
  std::optional<int64_t> memory_peak_bytes;
  std::optional<PhaseTimes> phases;         // seconds over the whole run
  std::optional<PhaseTimes> device_phases;  // likewise on a GPU; of a resumed run only its steps
  std::optional<Telemetry> telemetry;  // means: of the "end" record, or over the "step" records
  std::vector<StreamTime> streams;     // of a GPU, over the "step" records
};

RunFigures figures_of(const RunReading& run);

// Seconds that passed from `begin_s` to `end_s` of a run, by phase.
struct TimeSpan {
  double begin_s, end_s;
  PhaseTimes phases;
};

// All of a run's time, in order and without gaps. Time without a "step" record is evaluation up to
// the "eval" record that ends it, and kOther beyond. If the run resumed from another folder,
// without the time before its own first record.
std::vector<TimeSpan> time_spans(const RunReading& run);

// The same in `count` spans of equal length, assuming that each span of time_spans() is uniform.
// Empty if no time passed.
std::vector<TimeSpan> even_spans(const std::vector<TimeSpan>& spans, int count);

// The names in MetricsRecord::values of any record; one may be unknown in some, as NaN is.
std::vector<std::string> metrics_in(std::span<const MetricsRecord> records);

// Neighbouring records as one, at the position of the last of them: means weighted by their steps,
// the sum of times, the maximum of memory. `step_before`: the step of the record before them.
// REQUIRES: there is a record.
MetricsRecord merged(std::span<const MetricsRecord> records, int64_t step_before);

// Reduces many records to at most `count`, each merged from neighbouring ones.
std::vector<MetricsRecord> thinned(const std::vector<MetricsRecord>& records, size_t count);

}  // namespace saturate
