// Options of a loader that are out of range, or do not fit its dataset.
#pragma once

#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "saturate/data/loader.h"

namespace saturate {

// Fails with kUsage.
void check_loader(const Dataset& dataset, const LoaderOptions& options,
                  const AugmentOptions& augment);

}  // namespace saturate
