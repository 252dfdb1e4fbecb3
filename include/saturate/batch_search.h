// How many images fit in memory at once, found by trying.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "saturate/recipe.h"

namespace saturate {

// The largest count up to `limit` that `fits`, which holds for all below one that it holds for.
// Tries 2 and its powers until one does not fit, then halves the gap; 1 only where 2 does not fit.
// Nothing where 1 does not fit either. REQUIRES: limit above 0.
std::optional<int64_t> largest_that_fits(int64_t limit, const std::function<bool(int64_t)>& fits);

// Runs `attempt`; false where the device has no memory for it (c10::OutOfMemoryError). Memory kept
// for reuse is given back then. Everything else that `attempt` throws goes on.
bool fits_in_memory(const at::Device& device, const std::function<void()>& attempt);

// The most images whose step fits in the memory of `device`, `most` at most, as a run of `recipe`
// would make it: on a model and an optimizer of its own, with random images, in two parts where the
// effective batch (train.effective_batch) asks for more than one. On the CPU it leaves room for the
// copies that saving makes and, without a budget, for the batches that the loaders hold; on any
// device those take half of the host's memory at most. torch's random state is left as it was.
// REQUIRES: a recipe resolved but for train.batch. Fails with kRun where not one image fits.
int64_t find_micro_batch(Env& env, const Recipe& recipe, const at::Device& device, int64_t most);

}  // namespace saturate
