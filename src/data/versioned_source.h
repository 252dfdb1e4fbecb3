// A source with the versions of the objects that it was opened from.
#pragma once

#include <memory>
#include <vector>

#include "saturate/data/dataset.h"

namespace saturate {

// `source`, with these and its own versions. An IndexedSource stays one.
std::unique_ptr<Dataset> with_versions(std::unique_ptr<Dataset> source,
                                       std::vector<ObjectVersion> versions);

}  // namespace saturate
