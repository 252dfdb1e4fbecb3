// Factories of the sinks, one file each.
#pragma once

#include <memory>
#include <string>

#include "record/sinks.h"

namespace saturate {

// metrics.csv: one row per record. Rows of earlier processes are regenerated from metrics.jsonl.
std::unique_ptr<MetricsSink> make_csv_sink(Env& env, const std::string& folder);

// tb/events.out.tfevents.*: one file per process, with the recipe and the machine as text.
std::unique_ptr<MetricsSink> make_tensorboard_sink(Env& env, const Recipe& recipe,
                                                   const std::string& folder, int64_t begin_step);

// http://ADDRESS:PORT/metrics and /healthz while it lives. Fails with kUsage if the port is taken
// or the address is not this machine's.
std::unique_ptr<MetricsSink> make_prometheus_sink(Env& env, const WatchOptions& watch);

// A record's numbers under the names that metric tools expect: "loss" of "train" and so on.
struct NamedValue {
  std::string name;  // "loss", "images_per_s"
  double value;
};
std::vector<NamedValue> values_of(const MetricsRecord& record);

}  // namespace saturate
