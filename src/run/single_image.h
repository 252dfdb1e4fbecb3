// Batches that fall into parts of one image each, of which BatchNorm may have no variance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

// How a step's images come to the model.
struct Sharing {
  Shard shard;
  int replicas = 1;  // of the model in this process (distributed.mode = "dp")
};

// The fewest images over which a BatchNorm takes its statistics in a step of an epoch over `images`
// samples: of a process, a replica and a part of train.accumulate; with distributed.sync_bn of all
// processes. REQUIRES: train.batch is resolved.
int64_t fewest_together(const Recipe& recipe, size_t images, const Sharing& sharing);

// Fails with kUsage where fewest_together() is 1 and the model does not train on one image: torch's
// BatchNorm refuses one value a channel, and leaves running statistics that are no numbers. The
// model is as it was. REQUIRES: it is on `device`, and the recipe resolved.
void require_no_single_image(Model& model, const Recipe& recipe, size_t images,
                             const Sharing& sharing, const at::Device& device);

// Whether this is torch's refusal.
bool is_single_value_error(const std::string& message);

}  // namespace saturate
