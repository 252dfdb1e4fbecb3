// Histograms of tensor values, for TensorBoard.
#pragma once

#include <string>
#include <vector>

#include "record/sinks.h"
#include "saturate/model.h"

namespace saturate {

// One for each tensor that is defined and has a finite value, tagged "PREFIX/NAME": 64 bins of
// equal width from the smallest to the largest finite value. Waits for the device.
std::vector<TaggedHistogram> histograms_of(const std::string& prefix,
                                           const std::vector<NamedTensor>& tensors);

}  // namespace saturate
