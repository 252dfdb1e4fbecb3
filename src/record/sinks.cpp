#include "record/sinks.h"

#include "record/sink_list.h"

namespace saturate {

std::vector<NamedValue> values_of(const MetricsRecord& record) {
  std::vector<NamedValue> values;
  const auto add = [&values](const char* name, const auto& value) {
    if (value) values.push_back({name, double(*value)});
  };
  add("loss", record.loss);
  add("accuracy", record.accuracy);
  add("accuracy5", record.accuracy5);
  add("mean_iou", record.mean_iou);
  add("plain_loss", record.plain_loss);
  add("plain_accuracy", record.plain_accuracy);
  add("lr", record.lr);
  add("images_per_s", record.images_per_s);
  add("memory_peak_bytes", record.memory_peak_bytes);
  if (record.telemetry)
    for (const auto& field : telemetry_fields()) add(field.name, (*record.telemetry).*field.member);
  for (const auto& [name, value] : record.scalars) values.push_back({name, value});
  return values;
}

std::vector<std::shared_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder,
                                                     int64_t begin_step) {
  std::vector<std::shared_ptr<MetricsSink>> sinks;
  // Sinks that can fail come before those that create files.
  if (recipe.watch.prometheus_port > 0) sinks.push_back(make_prometheus_sink(env, recipe.watch));
  if (recipe.watch.csv) sinks.push_back(make_csv_sink(env, folder));
  if (recipe.watch.tensorboard)
    sinks.push_back(make_tensorboard_sink(env, recipe, folder, begin_step));
  return sinks;
}

}  // namespace saturate
