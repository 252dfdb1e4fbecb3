// Where a run's metrics go beside metrics.jsonl: a CSV file, TensorBoard, a Prometheus endpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/metrics.h"
#include "saturate/recipe.h"

namespace saturate {

// Receives every record after metrics.jsonl has it, in the order of the file. Belongs to one
// thread.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const MetricsRecord& record) = 0;
};

// The sinks that `recipe.watch` asks for, for a run in `folder` whose metrics.jsonl has just been
// opened. `begin_step`: steps that the run has already made; what earlier processes recorded of
// later ones is void. Fails with kUsage where the endpoint's port is taken, with kRun where a file
// cannot be written. `env` must outlive the sinks.
std::vector<std::unique_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder, int64_t begin_step);

}  // namespace saturate
