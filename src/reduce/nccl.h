// NCCL, where this build has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "saturate/world.h"

namespace saturate {

bool has_nccl();
// REQUIRES: has_nccl(); `device` is a GPU, used by no other rank.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const World& world, std::chrono::milliseconds timeout,
                                            const at::Device& device);

}  // namespace saturate
