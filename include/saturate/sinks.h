// Where a run's metrics go beside metrics.jsonl: a CSV file, TensorBoard, a Prometheus endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/metrics.h"
#include "saturate/recipe.h"

namespace saturate {

// An image as its file's bytes.
struct TaggedImage {
  std::string tag;
  int width = 0, height = 0;     // pixels
  std::vector<std::byte> bytes;  // JPEG or PNG
};

// How the finite values of a tensor are spread: counts[i] of them are at most edges[i], and more
// than edges[i - 1].
struct TaggedHistogram {
  std::string tag;
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> edges, counts;
};

// Receives every record after metrics.jsonl has it, in the order of the file. Belongs to one
// thread.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const MetricsRecord& record) = 0;
  // The same for what only some sinks have a use for.
  virtual void write_images(int64_t /*step*/, const std::vector<TaggedImage>&) {}
  virtual void write_histograms(int64_t /*step*/, const std::vector<TaggedHistogram>&) {}
};

// The sinks that `recipe.watch` asks for, for a run in `folder` whose metrics.jsonl has just been
// opened. `begin_step`: steps that the run has already made; what earlier processes recorded of
// later ones is void. Fails with kUsage where the endpoint's port is taken, with kRun where a file
// cannot be written. `env` must outlive the sinks.
std::vector<std::unique_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder, int64_t begin_step);

}  // namespace saturate
