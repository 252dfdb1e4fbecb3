#include "record/sinks.h"

namespace saturate {

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
