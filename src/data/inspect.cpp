#include "data/inspect.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "data/elements.h"
#include "data/in_order.h"
#include "data/progress_meter.h"
#include "data/read_sample.h"
#include "data/read_undamaged.h"
#include "data/scratch_pool.h"
#include "data/sources.h"
#include "image/jpeg_markers.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"
#include "saturate/data/loader.h"

namespace saturate {
namespace {

// Scratch of one thread.
struct Inspector {
  Decoder decoder;
  Sample sample;
  Image image;
  ClassMap mask;
};

// One sample's contribution to the report.
struct Finding {
  ImageInfo info{};
  bool is_progressive = false;  // a JPEG
  uint64_t bytes = 0;
  int64_t label = -1;  // -1 if the sample could not be read
  std::string name, error;
  std::vector<FieldReport> fields;  // of tensors; `mean` is the sum so far
  std::vector<uint64_t> pixels;     // [classes], if masks or labels of voxels were read
  uint64_t ignored = 0;             // pixels or voxels
};

// Whether the beginning of a file is a progressive JPEG's.
bool is_progressive(std::span<const std::byte> bytes) {
  bool found = false;
  walk_markers(bytes, [&](int marker, size_t, size_t) { found = found || marker == kFrame2; });
  return found;
}

void count_pixels(const Dataset& dataset, Inspector& inspector, Finding& out) {
  decode_mask(inspector.sample, out.info.width, out.info.height, dataset.classes().size(),
              inspector.mask);
  out.pixels.assign(dataset.classes().size(), 0);
  for (const uint8_t number : inspector.mask.classes)
    ++(number == kIgnoredClass ? out.ignored : out.pixels[number]);
}

// Whether the target is a class for each voxel, of classes that are known.
bool has_voxel_classes(const Dataset& dataset) {
  return !dataset.classes().empty() && labelled_volume(dataset.tensors()) != nullptr;
}

void count_voxels(const TensorField& target, const std::byte* from, size_t classes, Finding& out) {
  const ElementRow& element = element_row(target.type);
  out.pixels.assign(classes, 0);
  const std::byte* const end = from + target.bytes();
  for (; from != end; from += element.bytes) {
    const int64_t number = element.whole_number(from);
    if (number < 0 || number == kIgnoredClass)
      ++out.ignored;
    else if (number < int64_t(classes))
      ++out.pixels[size_t(number)];
  }
}

// Nearly all headers lie within this many bytes.
constexpr size_t kHeaderBytes = 16 << 10;

// Reads the start of the sample up to its header, or all of it if necessary.
void read_header(const IndexedSource& source, size_t index, Inspector& inspector, Finding& out) {
  Sample& sample = inspector.sample;
  out.bytes = source.read_start(index, kHeaderBytes, sample);
  if (sample.bytes.size() < out.bytes) {
    try {
      out.info = probe_sample(inspector.decoder, sample);
      return;
    } catch (const Error&) {  // the header may lie further on
      source.read(index, sample);
    }
  }
  out.info = probe_sample(inspector.decoder, sample);
}

void read_whole(const Dataset& dataset, size_t index, Inspector& inspector, Finding& out) {
  read_undamaged(dataset, index, 1, [&] {
    read_sample_once(dataset, index, inspector.sample);
    out.bytes = inspector.sample.bytes.size() + inspector.sample.mask.bytes.size();
    out.info = probe_sample(inspector.decoder, inspector.sample);
  });
}

void read_tensors(const Dataset& dataset, size_t index, Inspector& inspector, Finding& out) {
  read_sample(dataset, index, inspector.sample);
  out.bytes = inspector.sample.bytes.size();
  const std::byte* from = inspector.sample.bytes.data();
  for (const TensorField& field : dataset.tensors()) {
    FieldReport& report = out.fields.emplace_back(FieldReport{field, INFINITY, -INFINITY});
    const ElementRow& element = element_row(field.type);
    const size_t bytes = field.bytes();
    // Padding does not count.
    const size_t used =
        field.is_sequence ? bytes / size_t(field.shape[0]) * dataset.length(index) : bytes;
    if (field.is_target && has_voxel_classes(dataset))
      count_voxels(field, from, dataset.classes().size(), out);
    for (size_t at = 0; at < used; at += element.bytes) {
      const double value = element.number(from + at);
      if (!std::isfinite(value)) {
        ++report.not_finite;
        continue;
      }
      ++report.finite;
      report.min = std::min(report.min, value);
      report.max = std::max(report.max, value);
      report.mean += value;
    }
    from += bytes;
  }
}

void inspect_one(const Dataset& dataset, const IndexedSource* indexed, size_t index,
                 InspectDepth depth, Inspector& inspector, Finding& out) {
  inspector.sample.name.clear();
  inspector.sample.label = -1;
  try {
    if (!dataset.tensors().empty()) {
      read_tensors(dataset, index, inspector, out);
      out.label = inspector.sample.label;
      return;
    }
    if (indexed && depth == InspectDepth::kHeaders && !dataset.has_masks())
      read_header(*indexed, index, inspector, out);
    else
      read_whole(dataset, index, inspector, out);
    out.is_progressive = is_progressive(inspector.sample.bytes);
    if (depth == InspectDepth::kPixels)
      decode_sample(inspector.decoder, inspector.sample, inspector.image);
    if (dataset.has_masks()) count_pixels(dataset, inspector, out);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;  // of the store or the disk, not of the sample
    out.name = inspector.sample.name;
    out.error = error.reason();
  }
  out.label = inspector.sample.label;
}

// Number of samples by side length in pixels.
using Histogram = std::map<int, size_t>;

Spread spread_of(const Histogram& counts) {
  if (counts.empty()) return {};
  size_t total = 0;
  for (const auto& [value, count] : counts) total += count;
  auto median = counts.begin();
  for (size_t below = median->second; below < (total + 1) / 2; below += median->second) ++median;
  return {counts.begin()->first, median->first, counts.rbegin()->first};
}

size_t& count_of(DatasetReport& report, ImageFormat format) {
  size_t* const counts[] = {&report.jpeg, &report.png, &report.webp, &report.avif,
                            &report.raw};  // by ImageFormat
  return *counts[size_t(format)];
}

// The report as it grows. Safe for concurrent use.
class Tally {
 public:
  Tally(const Dataset& dataset, size_t looked_at) {
    report_.samples = dataset.size();
    report_.looked_at = looked_at;
    report_.classes = dataset.classes();
    report_.note = dataset.note();
    report_.class_samples.resize(report_.classes.size());
    report_.has_masks = dataset.has_masks();
    report_.has_voxels = has_voxel_classes(dataset);
    const bool has_pixels = report_.has_masks || report_.has_voxels;
    report_.class_pixels.resize(has_pixels ? report_.classes.size() : 0);
    for (const TensorField& field : dataset.tensors())
      report_.fields.push_back({field, INFINITY, -INFINITY});
  }

  // The labels of all its samples.
  void add_labels(const IndexedSource& source) {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < source.size(); ++i) add_label(source.label(i));
  }

  void add(size_t index, Finding& found, bool count_label) {
    const MutexLock lock(mutex_);
    if (count_label) add_label(found.label);
    if (!found.error.empty()) {
      report_.broken.push_back({index, std::move(found.name), std::move(found.error)});
      return;
    }
    add_pixels(found);
    report_.bytes += found.bytes;
    if (!report_.fields.empty()) return add_fields(found.fields);
    ++count_of(report_, found.info.format);
    progressive_ += found.is_progressive;
    ++report_.components[found.info.components];
    ++widths_[found.info.width];
    ++heights_[found.info.height];
  }

  DatasetReport finish() {
    const MutexLock lock(mutex_);
    std::ranges::sort(report_.broken, {}, &BrokenSample::index);
    report_.width = spread_of(widths_);
    report_.height = spread_of(heights_);
    if (progressive_ > 0 && !report_.has_masks)
      report_.note = std::to_string(progressive_) + " of " + std::to_string(report_.jpeg) +
                     " JPEGs are progressive: data.decode = \"fast\" reads them at a sixth of the "
                     "usual rate. data pack --out shard:FILE makes upright ones baseline, pixels "
                     "unchanged";
    for (FieldReport& field : report_.fields)
      if (field.finite > 0)
        field.mean /= double(field.finite);
      else
        field.min = field.max = 0;
    return std::move(report_);
  }

 private:
  void add_label(int64_t label) NEEDS_LOCK(mutex_) {
    if (label >= 0 && !report_.classes.empty()) ++report_.class_samples[size_t(label)];
  }

  void add_fields(const std::vector<FieldReport>& found) NEEDS_LOCK(mutex_) {
    for (size_t i = 0; i < found.size(); ++i) {
      FieldReport& field = report_.fields[i];
      field.min = std::min(field.min, found[i].min);
      field.max = std::max(field.max, found[i].max);
      field.mean += found[i].mean;
      field.finite += found[i].finite;
      field.not_finite += found[i].not_finite;
    }
  }

  void add_pixels(const Finding& found) NEEDS_LOCK(mutex_) {
    for (size_t i = 0; i < found.pixels.size(); ++i) {
      report_.class_pixels[i] += found.pixels[i];
      report_.class_samples[i] += found.pixels[i] > 0;
    }
    report_.ignored_pixels += found.ignored;
  }

  Mutex mutex_;
  DatasetReport report_ GUARDED_BY(mutex_);
  Histogram widths_ GUARDED_BY(mutex_), heights_ GUARDED_BY(mutex_);
  size_t progressive_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

DatasetReport inspect_dataset(const Dataset& dataset, InspectDepth depth, int threads,
                              const ProgressCallback& progress, size_t most) {
  const auto* indexed = dynamic_cast<const IndexedSource*>(&dataset);
  const bool has_pixels = dataset.has_masks() || has_voxel_classes(dataset);
  const bool knows_labels = indexed != nullptr && !has_pixels;
  const bool may_choose = knows_labels || has_pixels;
  const size_t size = dataset.size(), count = may_choose ? std::min(size, most) : size;
  Tally tally(dataset, count);
  if (knows_labels) tally.add_labels(*indexed);
  ProgressMeter meter(progress, count);
  ScratchPool<Inspector> pool;
  // Headers alone are other ranges than those of whole samples.
  const bool reads_all =
      count == size && (depth == InspectDepth::kPixels || !dataset.tensors().empty());
  InOrder ahead(dataset);
  parallel_for(count, threads, [&](size_t i) {
    const ScratchPool<Inspector>::Lent inspector(pool);
    const size_t index = i * size / count;
    if (reads_all) ahead.before(index);
    Finding found;
    inspect_one(dataset, indexed, index, depth, *inspector, found);
    tally.add(index, found, !may_choose);
    meter.add_one();
  });
  return tally.finish();
}

}  // namespace saturate
