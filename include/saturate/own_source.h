// A source of a program's own, which recipes then name by its scheme.
#pragma once

#include <string_view>

#include "saturate/dataset.h"

namespace saturate {

// Adds a row to dataset_sources(): from here on open_dataset(), data.source and data.eval_source
// take "SCHEME:REST", and `open` is given the rest. Both texts must outlive every use, as literals
// do. Fails with kUsage where there is a source of that scheme. To be called before anything else
// uses dataset_sources(), from one thread.
void add_source(std::string_view scheme, std::string_view doc, DatasetFactory open);

}  // namespace saturate
