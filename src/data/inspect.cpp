#include "saturate/inspect.h"

#include <algorithm>
#include <utility>

#include "data/progress_meter.h"
#include "data/scratch_pool.h"
#include "saturate/error.h"
#include "saturate/image.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

// Scratch of one thread.
struct Inspector {
  Decoder decoder;
  Sample sample;
  Image image;
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
    out.info = probe_sample(inspector.decoder, inspector.sample);
    if (depth == InspectDepth::kPixels)
      decode_sample(inspector.decoder, inspector.sample, inspector.image);
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

size_t* count_of(DatasetReport& report, ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return &report.jpeg;
    case ImageFormat::kPng:
      return &report.png;
    case ImageFormat::kRaw:
      break;
  }
  return &report.raw;
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
    ++*count_of(report, found.info.format);
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
  ScratchPool<Inspector> pool;
  parallel_for(dataset.size(), threads, [&](size_t i) {
    const ScratchPool<Inspector>::Lent inspector(pool);
    inspect_one(dataset, i, depth, *inspector, findings[i]);
    meter.add_one();
  });
  return summarise(dataset, findings);
}

}  // namespace saturate
