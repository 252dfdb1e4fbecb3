// Finds, by trial, how many images fit in memory at once.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "saturate/data/dataset.h"
#include "saturate/data/recipe.h"

namespace saturate {

// The largest count up to `limit` for which `fits` holds; `fits` must be monotonic. Tries 2 and its
// powers until one does not fit, then halves the gap; tries 1 only if 2 does not fit. Empty if 1
// does not fit either. REQUIRES: limit above 0.
std::optional<int64_t> largest_that_fits(int64_t limit, const std::function<bool(int64_t)>& fits);

// Whether an error means that a device has too little memory (c10::OutOfMemoryError, or the words
// of a CUDA library), or that a tensor has more elements than a kernel can count (2^31).
// `smaller_fits`: a smaller batch did, so that errors count which a model may cause at any size.
bool is_size_error(const c10::Error& error, bool smaller_fits = false);

// Runs `attempt`; false at such an error, after returning cached memory to the device. Other
// exceptions of `attempt` propagate.
bool fits_in_memory(const at::Device& device, const std::function<void()>& attempt,
                    bool smaller_fits = false);

// The samples of a run on tensors. Without fields, they are images.
struct TensorSamples {
  std::vector<TensorField> fields;  // batch_fields()
  int64_t loaded = 0;               // bytes of one in a training batch, as the loader delivers it
};

// The most images, up to `most`, whose step fits in the memory of `device` in a run of `recipe`:
// tried with a separate model and optimizer, on random images, in two micro-batches if
// `train.batch=auto:IMAGES` needs more than one. Beside them it holds memory for a pipeline's
// batches, and for a graph. On the CPU it leaves room for copies made by checkpoints and, without a
// budget, for the loaders' batches; on any device these take at most half of the host's memory.
// torch's random state is unchanged. REQUIRES: a recipe resolved except for train.batch. Fails with
// kRun if not one image fits.
int64_t find_micro_batch(Env& env, const Recipe& recipe, const at::Device& device, int64_t most,
                         const TensorSamples& tensors = {});

}  // namespace saturate
