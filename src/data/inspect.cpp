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
  ClassMap mask;
};

// What one sample adds to the report.
struct Finding {
  ImageInfo info{};
  uint64_t bytes = 0;
  int64_t label = -1;  // -1 where the sample could not be read
  std::string name, error;
  std::vector<uint32_t> pixels;  // of each number, [256] where the mask was decoded
};

void count_pixels(const Dataset& dataset, Inspector& inspector, Finding& out) {
  decode_mask(inspector.sample, inspector.image.width, inspector.image.height,
              dataset.classes().size(), inspector.mask);
  out.pixels.assign(256, 0);
  for (uint8_t number : inspector.mask.classes) ++out.pixels[number];
}

void inspect_one(const Dataset& dataset, size_t index, InspectDepth depth, Inspector& inspector,
                 Finding& out) {
  inspector.sample.name.clear();
  try {
    dataset.read(index, inspector.sample);
    out.label = inspector.sample.label;
    out.bytes = inspector.sample.bytes.size() + inspector.sample.mask.bytes.size();
    out.info = probe_sample(inspector.decoder, inspector.sample);
    if (depth == InspectDepth::kPixels) {
      decode_sample(inspector.decoder, inspector.sample, inspector.image);
      if (dataset.has_masks()) count_pixels(dataset, inspector, out);
    }
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

void add_pixels(const std::vector<uint32_t>& pixels, DatasetReport& report) {
  if (pixels.empty()) return;
  for (size_t i = 0; i < report.classes.size(); ++i) {
    report.class_pixels[i] += pixels[i];
    report.class_samples[i] += pixels[i] > 0;
  }
  report.ignored_pixels += pixels[kIgnoredClass];
}

DatasetReport summarise(const Dataset& dataset, std::vector<Finding>& findings) {
  DatasetReport report;
  report.samples = findings.size();
  report.classes = dataset.classes();
  report.class_samples.resize(report.classes.size());
  report.has_masks = dataset.has_masks();
  report.class_pixels.resize(report.has_masks ? report.classes.size() : 0);
  std::vector<int> widths, heights;
  for (size_t i = 0; i < findings.size(); ++i) {
    Finding& found = findings[i];
    if (found.label >= 0 && !report.has_masks) ++report.class_samples[size_t(found.label)];
    if (!found.error.empty()) {
      report.broken.push_back({i, std::move(found.name), std::move(found.error)});
      continue;
    }
    add_pixels(found.pixels, report);
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
