// Whether other data are of the classes, and of the size, that a model was trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "saturate/data/dataset.h"

namespace saturate {

// The model's numbers of the classes of `data`, by their names, as LoaderOptions::labels takes
// them; empty where they are the same. A class may be missing. Fails with kData, naming `source`
// and the class, where the model has no such class, or where masks number them in another way.
std::vector<int64_t> labels_in_model(const std::vector<std::string>& classes, const Dataset& data,
                                     const std::string& source);

// Fails with kData naming both where a run that goes on from `saved` would not have its training
// data: as many images (where the checkpoint tells), the same classes. `changed`: whether it may
// have others all the same, of as many classes.
void require_same_data(const Checkpoint& saved, const Dataset& data, const std::string& source,
                       bool changed);

}  // namespace saturate
