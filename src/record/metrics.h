// metrics.jsonl: one JSON object per line, a contract for scripts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "saturate/data/env.h"
#include "saturate/observer.h"

namespace saturate {

// A record's means, in the order of metrics.csv.
struct RecordMean {
  const char* name;  // in metrics.jsonl and everywhere else
  std::optional<double> MetricsRecord::*member;
};
inline constexpr RecordMean kRecordMeans[] = {{"loss", &MetricsRecord::loss},
                                              {"accuracy", &MetricsRecord::accuracy},
                                              {"accuracy5", &MetricsRecord::accuracy5},
                                              {"mean_iou", &MetricsRecord::mean_iou},
                                              {"plain_loss", &MetricsRecord::plain_loss},
                                              {"plain_accuracy", &MetricsRecord::plain_accuracy},
                                              {"lr", &MetricsRecord::lr},
                                              {"images_per_s", &MetricsRecord::images_per_s}};

// The metric of that name in MetricsRecord::values; empty if the record lacks it.
inline std::optional<double> metric_value(const MetricsRecord& record, std::string_view name) {
  const auto found = std::ranges::find(record.values, name, &MetricValue::name);
  return found == record.values.end() ? std::nullopt : std::optional(found->value);
}

// Wall time without evaluation and checkpoints, which images/s excludes.
inline double training_s(const PhaseTimes& times) {
  return times.total() - times[Phase::kEvaluation] - times[Phase::kCheckpoint];
}

// Whether records may have a value of that name: a key of metrics.jsonl, or of telemetry.
bool is_record_key(const std::string& name);

std::string to_json_line(const MetricsRecord& record);

// Empty if the line is not a record. Keys missing in an older version keep their defaults; a phase
// unknown to this version counts as kOther. Without MetricsRecord::scalars.
std::optional<MetricsRecord> from_json_line(const std::string& line);

// The bytes of a metrics.jsonl up to the last record for a step up to `last_step`, without the
// end's: a run that resumes from there repeats what follows. Reads the file from its end.
uint64_t end_of_records(Env& env, const std::string& path, int64_t last_step);

// Appends records to a file, each written to the system at once. Not for concurrent use.
class MetricsWriter : public Observer {
 public:
  MetricsWriter(Env& env, const std::string& path) : file_(env.open_appendable(path)) {}
  void write(const MetricsRecord& record);
  void on_record(MetricsRecord& record, ObserverContext&) override { write(record); }

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace saturate
