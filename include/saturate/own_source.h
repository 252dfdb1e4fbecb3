// A custom source that a program adds to the schemes of recipes.
#pragma once

#include <string_view>

#include "saturate/dataset.h"

namespace saturate {

// Adds a row to dataset_sources(): from now on open_dataset(), data.source and data.eval_source
// accept "SCHEME:REST", and `open` gets the rest. Both texts must outlive every use, like literals.
// Fails with kUsage if a source of that scheme exists. To be called before any other use of
// dataset_sources(), from one thread.
void add_source(std::string_view scheme, std::string_view doc, DatasetFactory open);

}  // namespace saturate
