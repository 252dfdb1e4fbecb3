// The one way from a dataset, which may be a program's own, to a sample that can be trusted.
#pragma once

#include "saturate/dataset.h"

namespace saturate {

// Dataset::read(), with the name left empty by a dataset set to "sample INDEX". Whatever it throws
// but saturate::Error and a lack of memory becomes an error of kData that names the sample, and may
// be skipped, as does a label that is not a position in classes().
void read_sample(const Dataset& dataset, size_t index, Sample& out);
// The same of Dataset::decoded(); null where that is.
const DecodedSample* decoded_sample(const Dataset& dataset, size_t index);

}  // namespace saturate
