#include "report/run_figures.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>

#include "record/telemetry_mean.h"

namespace saturate {
namespace {

TimeSpan span_of(double begin_s, double end_s, Phase phase) {
  TimeSpan span{begin_s, end_s, {}};
  span.phases.seconds[size_t(phase)] = end_s - begin_s;
  return span;
}

// Fills the gap between two "step" records. `evaluations`: the times at their ends, sorted.
void fill(std::vector<TimeSpan>& spans, double begin_s, double end_s,
          const std::vector<double>& evaluations) {
  if (end_s <= begin_s) return;
  const auto later = std::ranges::upper_bound(evaluations, end_s);
  const double evaluated_s =
      later == evaluations.begin() ? begin_s : std::max(begin_s, *std::prev(later));
  if (evaluated_s > begin_s) spans.push_back(span_of(begin_s, evaluated_s, Phase::kEvaluation));
  if (end_s > evaluated_s) spans.push_back(span_of(evaluated_s, end_s, Phase::kOther));
}

// An "end" record covers only its own process, which is not all of a resumed run.
bool ended_in_one(const RunReading& run) {
  return run.end && run.end->phases &&
         std::abs(run.end->phases->total() - run.last->time_s) <= 0.01 * run.last->time_s;
}

std::optional<PhaseTimes> whole_phases(const RunReading& run) {
  if (ended_in_one(run)) return run.end->phases;
  PhaseTimes sum;
  for (const auto& span : time_spans(run)) sum.add(span.phases);
  return sum.total() > 0 ? std::optional(sum) : std::nullopt;
}

// Over the records that have them; empty if no time passed.
std::optional<PhaseTimes> whole_times(std::span<const MetricsRecord> records,
                                      std::optional<PhaseTimes> MetricsRecord::*member) {
  PhaseTimes sum;
  for (const MetricsRecord& record : records)
    if (record.*member) sum.add(*(record.*member));
  return sum.total() > 0 ? std::optional(sum) : std::nullopt;
}

// Otherwise without the time between steps.
std::optional<PhaseTimes> whole_device_phases(const RunReading& run) {
  return ended_in_one(run) ? run.end->device_phases
                           : whole_times(run.steps, &MetricsRecord::device_phases);
}

std::optional<double> mean_images_per_s(std::span<const MetricsRecord> records) {
  double images = 0, seconds = 0;
  for (const auto& record : records) {
    if (!record.phases || !record.images_per_s) continue;
    images += *record.images_per_s * training_s(*record.phases);
    seconds += training_s(*record.phases);
  }
  return seconds > 0 ? std::optional(images / seconds) : std::nullopt;
}

std::vector<StreamTime> whole_streams(std::span<const MetricsRecord> records) {
  std::vector<StreamTime> sum;
  for (const auto& record : records)
    for (const auto& time : record.streams) {
      auto known = std::ranges::find(sum, time.stream, &StreamTime::stream);
      if (known == sum.end()) known = sum.insert(known, {time.stream});
      known->busy_s += time.busy_s;
      known->idle_s += time.idle_s;
    }
  return sum;
}

// Weights all records equally. Empty if none has telemetry.
std::optional<Telemetry> mean_telemetry(std::span<const MetricsRecord> records) {
  TelemetryMean mean;
  bool any = false;
  for (const MetricsRecord& record : records) {
    if (record.telemetry) mean.add(*record.telemetry);
    any = any || record.telemetry;
  }
  return any ? std::optional(mean.mean()) : std::nullopt;
}

// Over the records that have the value, weighted by their steps.
template <class ValueOf>
std::optional<double> weighted_mean(std::span<const MetricsRecord> records, int64_t step_before,
                                    const ValueOf& value_of) {
  double sum = 0, weights = 0;
  for (const MetricsRecord& record : records) {
    const double weight = double(std::max<int64_t>(1, record.step - step_before));
    step_before = record.step;
    const std::optional<double> value = std::invoke(value_of, record);
    if (!value) continue;
    sum += *value * weight;
    weights += weight;
  }
  return weights > 0 ? std::optional(sum / weights) : std::nullopt;
}

// The last evaluation, with the values of the "end" record: those of the weights that the run ended
// with, which may be earlier ones. REQUIRES: there is an evaluation.
MetricsRecord held_out_record(const RunReading& run) {
  MetricsRecord shown = run.evaluations.back();
  if (!run.end) return shown;
  const MetricsRecord& end = *run.end;
  for (const auto member : {&MetricsRecord::loss, &MetricsRecord::accuracy,
                            &MetricsRecord::accuracy5, &MetricsRecord::mean_iou})
    if (end.*member) shown.*member = end.*member;
  for (const MetricValue& each : end.values) {
    const auto at = std::ranges::find(shown.values, each.name, &MetricValue::name);
    if (at != shown.values.end()) at->value = each.value;
  }
  return shown;
}

// Whether steps before a run's first record are missing: the run resumed from another folder. A
// record's samples include some that were skipped.
bool lacks_earlier_steps(const MetricsRecord& first) {
  return first.phases && first.images_per_s &&
         double(first.samples) > 1.01 * *first.images_per_s * training_s(*first.phases) + 1;
}

}  // namespace

RunFigures figures_of(const RunReading& run) {
  RunFigures figures;
  figures.held_out = !run.evaluations.empty();
  if (figures.held_out || !run.steps.empty()) {
    const MetricsRecord shown = figures.held_out ? held_out_record(run) : run.steps.back();
    figures.accuracy = shown.accuracy;
    figures.accuracy5 = shown.accuracy5;
    figures.mean_iou = shown.mean_iou;
    figures.loss = shown.loss;
    figures.values = shown.values;
  }
  for (const auto& record : run.evaluations)
    if (record.accuracy)
      figures.best_accuracy = std::max(figures.best_accuracy.value_or(0), *record.accuracy);
  if (run.last) {
    figures.time_s = run.last->time_s;
    figures.epochs = run.last->epoch;
    figures.steps = run.last->step;
    figures.memory_peak_bytes = run.last->memory_peak_bytes;
  }
  figures.images_per_s = mean_images_per_s(run.steps);
  figures.phases = whole_phases(run);
  figures.device_phases = whole_device_phases(run);
  figures.streams = whole_streams(run.steps);
  figures.telemetry =
      run.end && run.end->telemetry ? run.end->telemetry : mean_telemetry(run.steps);
  return figures;
}

std::vector<TimeSpan> time_spans(const RunReading& run) {
  std::vector<TimeSpan> spans;
  std::vector<double> evaluations;
  evaluations.reserve(run.evaluations.size());
  for (const auto& record : run.evaluations) evaluations.push_back(record.time_s);
  std::ranges::sort(evaluations);
  double now_s = 0;
  for (const auto& record : run.steps) {
    if (!record.phases || record.time_s <= now_s) continue;
    const double begin_s = std::max(now_s, record.time_s - record.phases->total());
    if (spans.empty() && lacks_earlier_steps(record)) now_s = begin_s;
    fill(spans, now_s, begin_s, evaluations);
    spans.push_back({begin_s, record.time_s, *record.phases});
    now_s = record.time_s;
  }
  if (!spans.empty() && run.last) fill(spans, now_s, run.last->time_s, evaluations);
  return spans;
}

std::vector<TimeSpan> even_spans(const std::vector<TimeSpan>& spans, int count) {
  if (spans.empty() || spans.back().end_s <= 0) return {};
  const double width = spans.back().end_s / count;
  std::vector<TimeSpan> even;
  for (int i = 0; i < count; ++i) even.push_back({i * width, (i + 1) * width, {}});
  for (const auto& span : spans) {
    const double length = span.end_s - span.begin_s;
    if (length <= 0) continue;
    for (auto& bin : even) {
      const double overlap = std::min(span.end_s, bin.end_s) - std::max(span.begin_s, bin.begin_s);
      if (overlap > 0) bin.phases.add(span.phases, overlap / length);
    }
  }
  return even;
}

std::vector<std::string> metrics_in(std::span<const MetricsRecord> records) {
  std::vector<std::string> names;
  for (const MetricsRecord& record : records)
    for (const MetricValue& each : record.values)
      if (std::ranges::count(names, each.name) == 0) names.push_back(each.name);
  return names;
}

MetricsRecord merged(std::span<const MetricsRecord> records, int64_t step_before) {
  MetricsRecord all = records.back();
  for (const auto& mean : kRecordMeans)
    all.*mean.member = weighted_mean(records, step_before, mean.member);
  if (const auto rate = mean_images_per_s(records)) all.images_per_s = rate;
  all.values.clear();
  for (const std::string& name : metrics_in(records)) {
    const auto value = [&](const MetricsRecord& record) { return metric_value(record, name); };
    all.values.push_back({name, weighted_mean(records, step_before, value).value_or(0)});
  }
  for (const MetricsRecord& record : records)
    all.memory_peak_bytes = std::max(all.memory_peak_bytes, record.memory_peak_bytes);
  all.telemetry = mean_telemetry(records);
  all.phases = whole_times(records, &MetricsRecord::phases);
  all.device_phases = whole_times(records, &MetricsRecord::device_phases);
  all.streams = whole_streams(records);
  return all;
}

std::vector<MetricsRecord> thinned(const std::vector<MetricsRecord>& records, size_t count) {
  if (records.size() <= count) return records;
  std::vector<MetricsRecord> fewer;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * records.size() / count, end = (i + 1) * records.size() / count;
    fewer.push_back(merged(std::span(records).subspan(begin, end - begin),
                           begin == 0 ? 0 : records[begin - 1].step));
  }
  return fewer;
}

}  // namespace saturate
