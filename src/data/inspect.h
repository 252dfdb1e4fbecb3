// Statistics of a dataset, and its broken samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/input.h"

namespace saturate {

struct BrokenSample {
  size_t index;
  std::string name;
  std::string reason;
};

struct Spread {
  int min = 0, median = 0, max = 0;  // the lower median for an even number
};

// The values of a field in the valid samples among those inspected.
struct FieldReport {
  TensorField field;
  double min = 0, max = 0, mean = 0;  // of the finite values
  uint64_t finite = 0, not_finite = 0;
};

// Counts of the valid samples among those inspected, except the first three.
struct DatasetReport {
  size_t samples = 0;    // of the source
  size_t looked_at = 0;  // inspected, including broken ones
  std::vector<std::string> classes;
  std::vector<size_t> class_samples;  // [classes], of the whole source
  uint64_t bytes = 0;                 // as stored
  size_t jpeg = 0, png = 0, webp = 0, avif = 0, raw = 0;
  size_t components[5] = {};         // by ImageInfo::components, 1 to 4
  Spread width, height;              // pixels, after EXIF orientation
  std::vector<BrokenSample> broken;  // by index
  // For sources with masks, or labels of voxels of known classes: pixels (voxels) of each class
  // [classes], and those ignored. class_samples then counts valid inspected samples in which the
  // class appears.
  bool has_masks = false, has_voxels = false;
  std::vector<uint64_t> class_pixels;
  uint64_t ignored_pixels = 0;
  std::vector<FieldReport> fields;  // of tensors; the members about images are then 0
  std::string note;                 // Dataset::note(); of images, what slows their decoding
};

enum class InspectDepth {
  kHeaders,  // reads each image's header, and its mask; of tensors all
  kPixels,   // decodes each image, which also finds truncated and corrupt data
};

// Inspects every sample, or `most` evenly spread over the source, on `threads` threads; always
// every one of a custom source, whose labels are known only by reading. A broken sample is
// reported, never thrown. `progress` counts samples inspected, and may be empty.
DatasetReport inspect_dataset(const Dataset& dataset, InspectDepth depth, int threads,
                              const ProgressCallback& progress = {}, size_t most = SIZE_MAX);

}  // namespace saturate
