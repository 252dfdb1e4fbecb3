// NCCL, where this build has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "saturate/world.h"

namespace saturate {

// The interface that NCCL is to keep to, as it would otherwise listen on the machine's network even
// among processes of this machine alone; null where it is to choose, or somebody else has.
const char* nccl_interface(const World& world, const Lookup& lookup);

bool has_nccl();
// REQUIRES: has_nccl(); `device` is a GPU, used by no other rank.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const World& world, std::chrono::milliseconds timeout,
                                            const at::Device& device);

}  // namespace saturate
