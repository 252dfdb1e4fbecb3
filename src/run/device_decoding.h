// The share of a run's training images that the GPU decodes, with data.decode_device = "cuda".
#pragma once

#include <memory>
#include <string>

#include "saturate/data/recipe.h"
#include "saturate/feed.h"
#include "saturate/observer.h"

namespace saturate {

// Logs "gpu_decoded", a share from 0 to 1, in "epoch" records since the last of them, and in the
// "end" record of all images; nothing without images. `feeder` must outlive it.
std::shared_ptr<Observer> make_decoding_observer(const Feeder& feeder);

// A line for the end of a run; below 90 % with the reason and a remedy. Empty without images.
std::string decoding_line(const DecodedImages& decoded, const Recipe& recipe);

}  // namespace saturate
