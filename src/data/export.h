// Writing a dataset's samples in another format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/inspect.h"
#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/loader.h"

namespace saturate {

// Writes sample i, in its encoding, to CLASS/0000000i.jpg (or its ending) in the folder `out`, or
// in the archive `out` if it ends in ".tar". A folder must be missing or empty, an archive missing;
// both appear under their names only when complete. Raw samples become PNG, segmented JPEGs plain
// ones, their original bytes if possible. Equal samples give equal bytes. With masks, writes the
// layout of masks:PATH: images/, masks/ and classes.txt. Reads on `threads` threads; what
// `progress` throws cancels, and is rethrown. Fails with kUsage if `out` is taken.
void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress = {});

struct PackOptions {
  // shard:FILE, which alone holds tensors, lmdb:FOLDER or tar:FILE; FILE may be an object of s3://
  // or gs://, which appears when it is complete.
  std::string out;
  // Shrinks images whose longer side exceeds this, keeping the aspect ratio; 0: never. Pixels.
  int max_side = 0;
  // JPEG quality of every image, 1 to 100; 0: images are copied unchanged, shrunk ones get 90.
  int quality = 0;
  // Share of the samples to store as decoded pixels, evenly spread; not in a tar. Samples that are
  // raw in the source stay raw unless `quality` is given.
  double raw_fraction = 0;
  // shard: only. Splits wider JPEGs into segments of this many MCUs, without changing a pixel, so
  // that a crop is decoded without its surroundings; 0: never.
  int segment = 4;
  // Decodes every segmented JPEG, whole and in part, restores those that can be, and fails with
  // kRun if a pixel or a byte differs; reads an object and tensors back, and fails with kRun if a
  // byte differs.
  bool verify = false;
  int threads = 1;
  // Handling of a sample that cannot be read or decoded. Copied images are not decoded:
  // inspect_dataset() finds broken ones.
  OnError on_error = OnError::kFail;
  StoreOptions store;  // for an object; not if `env` is a StoreEnv
};

struct PackReport {
  size_t samples = 0;    // written
  size_t copied = 0;     // of those: unchanged
  size_t segmented = 0;  // of those: segmented
  size_t joined = 0;     // of those: segmented before, now plain files
  size_t exact = 0;    // of the segmented: to be restored byte for byte; of the joined: restored so
  size_t raw = 0;      // of those: stored as pixels
  uint64_t bytes = 0;  // total of the samples
  std::vector<SkippedSample> skipped;
};

// Writes every sample, in the source's order, to a file that appears under its name only when
// complete; removes incomplete files of killed runs. The bytes written depend only on dataset and
// options, not on `threads`. Fails with kUsage if `out` is taken or has an unknown format.
PackReport pack_dataset(Env& env, const Dataset& dataset, const PackOptions& options,
                        const ProgressCallback& progress = {});

}  // namespace saturate
