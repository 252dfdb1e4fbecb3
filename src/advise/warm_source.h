// One opened source, shared by interleaved runs.
#pragma once

#include <memory>
#include <vector>

#include "saturate/data/data_options.h"
#include "saturate/data/dataset.h"

namespace saturate {

// Facts about a source, from a few of its samples.
struct SourceFacts {
  size_t samples = 0;         // in all
  bool has_jpeg = false;      // among those looked at
  bool is_encoded = false;    // at least one of them is
  bool is_segmented = false;  // at least one of them is a JPEG in segments
  bool is_indexed = false;    // half of them or more are JPEGs in the source's index
  bool is_tensors = false;
  double bytes = 0;        // of a sample, as stored: mean
  double pixel_bytes = 0;  // of a sample, decoded: mean
};

// Positions of `count` samples at most, evenly spread.
std::vector<size_t> spread_samples(size_t size, size_t count);

// Reads those samples, and skips broken ones.
SourceFacts source_facts(const Dataset& source, const std::vector<size_t>& samples);

// `source`, which must outlive the result, as a run reads it after its first epoch: if `cache`
// keeps samples in memory, the result repeats `samples`, which are all cached already.
std::unique_ptr<Dataset> warm_source(const Dataset& source, const CacheOptions& cache,
                                     std::vector<size_t> samples);

}  // namespace saturate
