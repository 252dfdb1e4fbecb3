// What a report says of a run, computed from its records.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "watch/run_reading.h"

namespace saturate {

struct RunFigures {
  // Of the last evaluation, or of training where there was none.
  std::optional<double> accuracy, accuracy5, mean_iou, loss;
  bool held_out = false;
  std::optional<double> best_accuracy;  // of all evaluations
  double time_s = 0, epochs = 0;
  int64_t steps = 0, samples = 0;
  std::optional<double> images_per_s;  // in training: without evaluation and checkpoints
  std::optional<int64_t> memory_peak_bytes;
  std::optional<PhaseTimes> phases;         // seconds over the whole run
  std::optional<PhaseTimes> device_phases;  // likewise on a GPU; of a resumed run in its steps
  std::optional<Telemetry> telemetry;  // means: of the "end" record, or over those of the steps
  std::vector<StreamTime> streams;     // of a GPU, over the "step" records
};

RunFigures figures_of(const RunReading& run);

// Seconds that passed from `begin_s` to `end_s` of a run, by phase.
struct TimeSpan {
  double begin_s, end_s;
  PhaseTimes phases;
};

// All of a run's time, in order and without holes. Time that no "step" record covers is evaluation
// as far as an "eval" record ends it, and kOther beyond.
std::vector<TimeSpan> time_spans(const RunReading& run);

// The same in `count` spans of equal length; what a span of time_spans() holds is taken to be
// spread evenly over it. Empty where no time passed.
std::vector<TimeSpan> even_spans(const std::vector<TimeSpan>& spans, int count);

// At most `count` records in place of many: each is the mean over neighbouring ones, weighted by
// their steps, and stands where the last of them stood. Memory is the most of them.
std::vector<MetricsRecord> thinned(const std::vector<MetricsRecord>& records, size_t count);

}  // namespace saturate
