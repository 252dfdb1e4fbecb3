// Makers of the sinks, one file each.
#pragma once

#include <memory>
#include <string>

#include "saturate/sinks.h"

namespace saturate {

// metrics.csv: a row a record. Rows of earlier processes are made anew from metrics.jsonl.
std::unique_ptr<MetricsSink> make_csv_sink(Env& env, const std::string& folder);

// tb/events.out.tfevents.*: one file a process, with the recipe and the machine as text.
std::unique_ptr<MetricsSink> make_tensorboard_sink(Env& env, const Recipe& recipe,
                                                   const std::string& folder, int64_t begin_step);

// http://ADDRESS:PORT/metrics and /healthz while it lives. Fails with kUsage where the port is
// taken, or the address is none of this machine's.
std::unique_ptr<MetricsSink> make_prometheus_sink(Env& env, const WatchOptions& watch);

// A record's numbers as a program that watches many runs wants them: "loss" of "train" and so on.
struct NamedValue {
  std::string name;  // "loss", "images_per_s"
  double value;
};
std::vector<NamedValue> values_of(const MetricsRecord& record);

}  // namespace saturate
