// Batches that leave a micro-batch of one image, over which BatchNorm may have no variance.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>

#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

// How a step's images are divided.
struct Sharing {
  Shard shard;
  int replicas = 1;  // of the model in this process (distributed.mode = "dp")
};

// The fewest images over which a BatchNorm takes its statistics in a step of an epoch over `images`
// samples: of a rank, a replica and a micro-batch; with distributed.sync_bn of all ranks. REQUIRES:
// train.batch is resolved.
int64_t fewest_together(const Recipe& recipe, size_t images, const Sharing& sharing);

// Fails with kUsage if fewest_together() is 1 and the model does not train on one image: torch's
// BatchNorm fails on one value per channel, or leaves running statistics that are NaN. The model is
// unchanged. REQUIRES: it is on `device`, and the recipe resolved.
void require_no_single_image(Model& model, const Recipe& recipe, size_t images,
                             const Sharing& sharing, const ModelInput& input,
                             const at::Device& device);

// Whether this is torch's error for one value per channel.
bool is_single_value_error(const c10::Error& error);

}  // namespace saturate
