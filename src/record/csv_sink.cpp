#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "base/files.h"
#include "record/sinks.h"

namespace saturate {
namespace {

std::string head(const std::vector<std::string>& metrics) {
  std::string row = "kind,step,epoch,samples,time_s";
  for (const auto& column : kRecordMeans) row += fmt::format(",{}", column.name);
  row += ",memory_peak_bytes";
  for (int i = 0; i < kPhaseCount; ++i) row += fmt::format(",{}_s", phase_name(Phase(i)));
  for (const auto& column : telemetry_fields()) row += fmt::format(",{}", column.name);
  for (const std::string& name : metrics) row += "," + name;
  return row + "\n";
}

// An empty field means unknown.
template <class T>
std::string field(const std::optional<T>& value) {
  return value ? fmt::format(",{}", *value) : ",";
}

std::string row_of(const MetricsRecord& record, const std::vector<std::string>& metrics) {
  std::string row = fmt::format("{},{},{},{},{}", record.kind, record.step, record.epoch,
                                record.samples, record.time_s);
  for (const auto& column : kRecordMeans) row += field(record.*column.member);
  row += field(record.memory_peak_bytes);
  for (int i = 0; i < kPhaseCount; ++i)
    row += field(record.phases ? std::optional((*record.phases)[Phase(i)]) : std::nullopt);
  for (const auto& column : telemetry_fields())
    row += field(record.telemetry ? (*record.telemetry).*column.member : std::nullopt);
  for (const std::string& name : metrics) {
    const auto found = std::ranges::find(record.values, name, &MetricValue::name);
    row += field(found == record.values.end() ? std::nullopt : std::optional(found->value));
  }
  return row + "\n";
}

class CsvSink : public MetricsSink {
 public:
  CsvSink(Env& env, const std::string& folder, const std::vector<std::string>& metrics)
      : env_(env), folder_(folder), metrics_(metrics), file_(env.open_appendable(path())) {}
  void start() override {
    std::istringstream lines(text_of_file(env_, folder_ + "/metrics.jsonl"));
    std::string rows = head(metrics_);
    for (std::string line; std::getline(lines, line);)
      if (const auto record = from_json_line(line)) rows += row_of(*record, metrics_);
    write_atomically(env_, path(), rows);
    file_ = env_.open_appendable(path());
  }
  void write(const MetricsRecord& record) override {
    const std::string row = row_of(record, metrics_);
    file_->append(std::as_bytes(std::span(row)));
  }

 private:
  std::string path() const { return folder_ + "/metrics.csv"; }

  Env& env_;
  const std::string folder_;
  const std::vector<std::string> metrics_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_csv_sink(Env& env, const std::string& folder,
                                           const std::vector<std::string>& metrics) {
  return std::make_unique<CsvSink>(env, folder, metrics);
}

}  // namespace saturate
