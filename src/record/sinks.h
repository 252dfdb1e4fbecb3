// Outputs of a run's metrics besides metrics.jsonl: a CSV file, TensorBoard, a Prometheus endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "record/metrics.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

struct NamedTensor;  // saturate/model.h
class Progress;

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

// One for each tensor that is defined and has a finite value, tagged "PREFIX/NAME": 64 bins of
// equal width from the smallest to the largest finite value. Waits for the device.
std::vector<TaggedHistogram> histograms_of(const std::string& prefix,
                                           const std::vector<NamedTensor>& tensors);

// Receives every record after it is in metrics.jsonl, in order. A run continues without a sink that
// fails, with a warning. Belongs to one thread.
class MetricsSink : public Observer {
 public:
  // Before the first record, when metrics.jsonl holds the records of the steps already made.
  void begin(ObserverContext& run) {
    attempt(run, [&] { start(); });
  }
  void on_record(MetricsRecord& record, ObserverContext& run) final {
    attempt(run, [&] { write(record); });
  }
  void images(int64_t step, const std::vector<TaggedImage>& images, ObserverContext& run) {
    attempt(run, [&] { write_images(step, images); });
  }
  void histograms(int64_t step, const std::vector<TaggedHistogram>& all, ObserverContext& run) {
    attempt(run, [&] { write_histograms(step, all); });
  }

  virtual void start() {}
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
      run.warn(std::string(error.what()) + "; the run continues without it");
    }
  }

  bool has_failed_ = false;
};

// The sinks of `recipe.watch`, for a run in `folder`. `begin_step`: steps already made; earlier
// processes' records of later steps are void. Changes no file's contents: the run may still be
// refused. Fails with kUsage if the endpoint's port is taken, with kRun if a file cannot be opened.
// `env` must outlive the sinks. `metrics`: as for make_csv_sink().
std::vector<std::shared_ptr<MetricsSink>> open_sinks(Env& env, const Recipe& recipe,
                                                     const std::string& folder, int64_t begin_step,
                                                     const std::vector<std::string>& metrics = {});

// metrics.csv: one row per record. Rows of earlier processes are regenerated from metrics.jsonl.
// `metrics`: the names in MetricsRecord::values that have columns, the last ones.
std::unique_ptr<MetricsSink> make_csv_sink(Env& env, const std::string& folder,
                                           const std::vector<std::string>& metrics = {});

// tb/events.out.tfevents.*: one file per process, with the recipe and the machine as text.
std::unique_ptr<MetricsSink> make_tensorboard_sink(Env& env, const Recipe& recipe,
                                                   const std::string& folder, int64_t begin_step);

// http://ADDRESS:PORT/metrics and /healthz while it lives. Fails with kUsage if the port is taken
// or the address is not this machine's.
std::unique_ptr<MetricsSink> make_prometheus_sink(Env& env, const WatchOptions& watch);

// Shows a run's progress, and a line for each epoch and evaluation. `progress` must outlive it.
// `epochs`: of the whole run.
// `has_images`: else samples are tensors.
std::unique_ptr<Observer> make_run_progress(Progress& progress, double epochs,
                                            bool has_images = true);

// A record's numbers under the names that metric tools expect: "loss" of "train" and so on.
std::vector<std::pair<std::string, double>> values_of(const MetricsRecord& record);

}  // namespace saturate
