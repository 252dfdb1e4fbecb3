// Writing a dataset's samples in another format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "saturate/dataset.h"
#include "saturate/env.h"
#include "saturate/inspect.h"
#include "saturate/loader.h"

namespace saturate {

// Writes sample i, as it is encoded, to CLASS/0000000i.jpg (or .png) in the folder `out`, or in the
// archive `out` where it ends in ".tar". A folder must be absent or empty, and keeps what was
// written when this fails; an archive must be absent and appears only when it is complete. Raw
// samples become PNG, JPEGs in segments plain ones. Equal samples give equal bytes. Where
// there are masks, writes what masks:PATH takes: images/, masks/ and classes.txt. Reads on
// `threads` threads. Fails with kUsage where `out` is taken.
void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress = {});

struct PackOptions {
  std::string out;  // shard:FILE, lmdb:FOLDER or tar:FILE
  // Shrinks images whose longer side is longer, keeping their shape; 0: never. Pixels.
  int max_side = 0;
  // JPEG quality of every image, 1 to 100; 0: images are copied as they are, those that are shrunk
  // get 90.
  int quality = 0;
  // Share of the samples to store as pixels, decoded, evenly spread; not in a tar. Samples that the
  // source has as pixels stay so unless `quality` is given.
  double raw_fraction = 0;
  // shard: alone. Cuts JPEGs that are wider into segments of so many MCUs, without changing a
  // pixel, so that a crop is decoded without what lies around it; 0: they stay as they are.
  int segment = 4;
  // Decodes every JPEG that was cut, whole and in part, and fails with kRun where a pixel differs.
  bool verify = false;
  int threads = 1;
  // What a sample that cannot be read or decoded does. Images that are copied are not decoded:
  // inspect_dataset() finds which of them are broken.
  OnError on_error = OnError::kFail;
};

struct PackReport {
  size_t samples = 0;    // written
  size_t copied = 0;     // of those: as they were
  size_t segmented = 0;  // of those: cut into segments
  size_t raw = 0;        // of those: stored as pixels
  uint64_t bytes = 0;    // of the samples' images
  std::vector<SkippedSample> skipped;
};

// Writes every sample, in the source's order, to a file that appears under its name only when it is
// whole; what a killed run left of an earlier try is removed. The bytes written depend on dataset
// and options alone, not on `threads`. Fails with kUsage where `out` is taken or is of no known
// format.
PackReport pack_dataset(Env& env, const Dataset& dataset, const PackOptions& options,
                        const ProgressCallback& progress = {});

}  // namespace saturate
