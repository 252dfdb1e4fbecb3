// The conditions on the options of a Loader.
#pragma once

#include "saturate/data/loader.h"

namespace saturate {

// Fails with kUsage on options that are out of range, or contradict each other or the dataset.
void check_options(const Dataset& dataset, const LoaderOptions& options,
                   const AugmentOptions& augment);

}  // namespace saturate
