#include "saturate/inspect.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "data/progress_meter.h"
#include "saturate/error.h"
#include "saturate/image.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

// Scratch of one thread, lent to whichever sample is next.
struct Inspector {
  Decoder decoder;
  Sample sample;
  Image image;
};

class InspectorPool {
 public:
  std::unique_ptr<Inspector> take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Inspector>();
    auto inspector = std::move(free_.back());
    free_.pop_back();
    return inspector;
  }
  void give_back(std::unique_ptr<Inspector> inspector) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(inspector));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Inspector>> free_;  // guarded by mutex_
};

// What one sample adds to the report.
struct Finding {
  ImageInfo info{};
  uint64_t bytes = 0;
  int64_t label = -1;  // -1 where the sample could not be read
  std::string name, error;
};

void inspect_one(const Dataset& dataset, size_t index, InspectDepth depth, Inspector& inspector,
                 Finding& out) {
  inspector.sample.name.clear();
  try {
    dataset.read(index, inspector.sample);
    out.label = inspector.sample.label;
    out.bytes = inspector.sample.bytes.size();
    const std::string& name = inspector.sample.name;
    out.info = inspector.decoder.probe(inspector.sample.bytes, name);
    if (depth == InspectDepth::kPixels)
      inspector.decoder.decode(inspector.sample.bytes, name, inspector.image);
  } catch (const Error& error) {
    out.name = inspector.sample.name;
    out.error = error.reason();
  }
}

Spread spread_of(std::vector<int>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), values[(values.size() - 1) / 2], values.back()};
}

DatasetReport summarise(const Dataset& dataset, std::vector<Finding>& findings) {
  DatasetReport report;
  report.samples = findings.size();
  report.classes = dataset.classes();
  report.class_samples.resize(report.classes.size());
  std::vector<int> widths, heights;
  for (size_t i = 0; i < findings.size(); ++i) {
    Finding& found = findings[i];
    if (found.label >= 0) ++report.class_samples[size_t(found.label)];
    if (!found.error.empty()) {
      report.broken.push_back({i, std::move(found.name), std::move(found.error)});
      continue;
    }
    report.bytes += found.bytes;
    ++(found.info.format == ImageFormat::kJpeg ? report.jpeg : report.png);
    ++report.components[found.info.components];
    widths.push_back(found.info.width);
    heights.push_back(found.info.height);
  }
  report.width = spread_of(widths);
  report.height = spread_of(heights);
  return report;
}

}  // namespace

DatasetReport inspect_dataset(const Dataset& dataset, InspectDepth depth, int threads,
                              const ProgressCallback& progress) {
  std::vector<Finding> findings(dataset.size());
  ProgressMeter meter(progress, dataset.size());
  InspectorPool pool;
  parallel_for(dataset.size(), threads, [&](size_t i) {
    auto inspector = pool.take();
    inspect_one(dataset, i, depth, *inspector, findings[i]);
    pool.give_back(std::move(inspector));
    meter.add_one();
  });
  return summarise(dataset, findings);
}

}  // namespace saturate
