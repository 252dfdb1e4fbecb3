// Writing a dataset's samples, as they are encoded, to class folders or a tar archive.
#pragma once

#include <string>

#include "saturate/dataset.h"
#include "saturate/env.h"
#include "saturate/inspect.h"

namespace saturate {

// Writes sample i to CLASS/0000000i.jpg (or .png) in the folder `out`, or in the archive `out`
// where it ends in ".tar". A folder must be absent or empty, and keeps what was written when this
// fails; an archive must be absent and appears only when it is complete. Equal samples give equal
// bytes. Reads on `threads` threads. Fails with kUsage where `out` is taken.
void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress = {});

}  // namespace saturate
