// Outputs of a run's metrics besides metrics.jsonl: a CSV file, TensorBoard, a Prometheus endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "record/metrics.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

// An encoded image.
struct TaggedImage {
  std::string tag;
  int width = 0, height = 0;     // pixels
  std::vector<std::byte> bytes;  // JPEG or PNG
};

// The distribution of a tensor's finite values: counts[i] of them are at most edges[i], and more
// than edges[i - 1].
struct TaggedHistogram {
  std::string tag;
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> edges, counts;
};

// Receives every record after it is in metrics.jsonl, in order. A run goes on without a sink that
// fails, with a warning. Belongs to one thread.
class MetricsSink : public Observer {
 public:
  void on_record(MetricsRecord& record, ObserverContext& run) final {
    attempt(run, [&] { write(record); });
  }
  void images(int64_t step, const std::vector<TaggedImage>& images, ObserverContext& run) {
    attempt(run, [&] { write_images(step, images); });
  }
  void histograms(int64_t step, const std::vector<TaggedHistogram>& all, ObserverContext& run) {
    attempt(run, [&] { write_histograms(step, all); });
  }

  virtual void write(const MetricsRecord& record) = 0;
  // Data that only some sinks support.
  virtual void write_images(int64_t /*step*/, const std::vector<TaggedImage>&) {}
  virtual void write_histograms(int64_t /*step*/, const std::vector<TaggedHistogram>&) {}

 private:
  template <class Body>
  void attempt(ObserverContext& run, const Body& body) {
    if (has_failed_) return;
    try {
      body();
    } catch (const Error& error) {
      has_failed_ = true;
      run.warn(std::string(error.what()) + "; the run goes on without it");
    }
  }

  bool has_failed_ = false;
};

// The sinks of `recipe.watch`, for a run in `folder` whose metrics.jsonl has just been opened.
// `begin_step`: steps already made; earlier processes' records of later steps are void. Fails with
// kUsage if the endpoint's port is taken, with kRun if a file cannot be written. `env` must outlive
// the sinks.
std::vector<std::shared_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder, int64_t begin_step);

}  // namespace saturate
