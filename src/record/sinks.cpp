#include "record/sinks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "base/files.h"
#include "data/csv_format.h"
#include "saturate/model.h"

namespace saturate {
namespace {

std::string head(const std::vector<std::string>& metrics) {
  std::string row = "kind,step,epoch,samples,time_s";
  for (const auto& column : kRecordMeans) row += fmt::format(",{}", column.name);
  row += ",memory_peak_bytes";
  for (int i = 0; i < kPhaseCount; ++i) row += fmt::format(",{}_s", phase_name(Phase(i)));
  for (const auto& column : telemetry_fields()) row += fmt::format(",{}", column.name);
  for (const std::string& name : metrics) row += "," + csv_field(name);
  return row + "\n";
}

// An empty field means unknown, as null in metrics.jsonl.
template <class T>
std::string field(const std::optional<T>& value) {
  return value && std::isfinite(double(*value)) ? fmt::format(",{}", *value) : ",";
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
  for (const std::string& name : metrics) row += field(metric_value(record, name));
  return row + "\n";
}

class CsvSink : public MetricsSink {
 public:
  CsvSink(Env& env, const std::string& folder, const std::vector<std::string>& metrics)
      : env_(env), folder_(folder), metrics_(metrics), file_(env.open_appendable(path())) {}
  void start() override {
    write_atomically(env_, path(), [&](WritableFile& file) {
      append(file, head(metrics_));
      LineReader lines(env_, folder_ + "/metrics.jsonl");
      for (std::string line; lines.next(line);)
        if (const auto record = from_json_line(line)) append(file, row_of(*record, metrics_));
    });
    file_ = env_.open_appendable(path());
  }
  void write(const MetricsRecord& record) override { append(*file_, row_of(record, metrics_)); }

 private:
  static void append(WritableFile& file, const std::string& row) {
    file.append(std::as_bytes(std::span(row)));
  }
  std::string path() const { return folder_ + "/metrics.csv"; }

  Env& env_;
  const std::string folder_;
  const std::vector<std::string> metrics_;
  std::unique_ptr<WritableFile> file_;
};

constexpr int kBins = 64;

std::optional<TaggedHistogram> histogram_of(std::span<const float> values) {
  TaggedHistogram found;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    found.min = found.count == 0 ? value : std::min(found.min, double(value));
    found.max = found.count == 0 ? value : std::max(found.max, double(value));
    ++found.count;
    found.sum += value;
    found.sum_of_squares += double(value) * value;
  }
  if (found.count == 0) return std::nullopt;
  const double width = (found.max - found.min) / kBins;
  found.counts.assign(kBins, 0);
  for (int i = 0; i < kBins; ++i) found.edges.push_back(found.min + width * (i + 1));
  found.edges.back() = found.max;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const double bin = width > 0 ? std::ceil((value - found.min) / width) - 1 : 0;
    ++found.counts[size_t(std::clamp(bin, 0.0, double(kBins - 1)))];
  }
  return found;
}

}  // namespace

std::vector<TaggedHistogram> histograms_of(const std::string& prefix,
                                           const std::vector<NamedTensor>& tensors) {
  std::vector<TaggedHistogram> histograms;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    auto found = histogram_of({values.const_data_ptr<float>(), size_t(values.numel())});
    if (!found) continue;
    found->tag = prefix + "/" + name;
    histograms.push_back(std::move(*found));
  }
  return histograms;
}

std::unique_ptr<MetricsSink> make_csv_sink(Env& env, const std::string& folder,
                                           const std::vector<std::string>& metrics) {
  return std::make_unique<CsvSink>(env, folder, metrics);
}

std::vector<std::pair<std::string, double>> values_of(const MetricsRecord& record) {
  std::vector<std::pair<std::string, double>> values;
  const auto add = [&values](const char* name, const auto& value) {
    if (value) values.emplace_back(name, double(*value));
  };
  for (const auto& [name, member] : kRecordMeans) add(name, record.*member);
  for (const auto& [name, value] : record.values) values.emplace_back(name, value);
  add("memory_peak_bytes", record.memory_peak_bytes);
  if (record.telemetry)
    for (const auto& field : telemetry_fields()) add(field.name, (*record.telemetry).*field.member);
  values.insert(values.end(), record.scalars.begin(), record.scalars.end());
  return values;
}

std::vector<std::shared_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder, int64_t begin_step,
                                                     const std::vector<std::string>& metrics) {
  std::vector<std::shared_ptr<MetricsSink>> sinks;
  // An endpoint that is refused comes before sinks that create files.
  if (recipe.watch.prometheus_port > 0) sinks.push_back(make_prometheus_sink(env, recipe.watch));
  if (recipe.watch.csv) sinks.push_back(make_csv_sink(env, folder, metrics));
  if (recipe.watch.tensorboard)
    sinks.push_back(make_tensorboard_sink(env, recipe, folder, begin_step));
  return sinks;
}

}  // namespace saturate
