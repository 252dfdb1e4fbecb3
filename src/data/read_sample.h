// The only path from a dataset, which may be user code, to a validated sample.
#pragma once

#include "saturate/data/dataset.h"

namespace saturate {

// Dataset::read(), with an empty name set to "sample INDEX". Any exception other than
// saturate::Error and out of memory becomes a kData error that names the sample and may be skipped,
// as does a label that is not an index into classes(). A sample that comes damaged from far away is
// read once more.
void read_sample(const Dataset& dataset, size_t index, Sample& out);
// The same without that. `rows`: all, or as of Dataset::read_rows().
void read_sample_once(const Dataset& dataset, size_t index, Sample& out, ImageRows rows = {});
// The same for Dataset::decoded(); null if that is.
const DecodedSample* decoded_sample(const Dataset& dataset, size_t index);

// Copies the image's size and pixels into the sample, as SampleEncoding::kRaw; label and name stay.
void set_raw(const Image& image, Sample& sample);

}  // namespace saturate
