// Backends of Group: NCCL, if this build has it, and shared memory of one machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "saturate/data/world.h"

namespace saturate {

// The network interface to restrict NCCL to, since by default it listens on the machine's network
// even if all processes are on this machine; null if NCCL is to choose or the user has chosen.
const char* nccl_interface(const World& world, const Lookup& lookup);

bool has_nccl();
// REQUIRES: has_nccl(); `device` is a GPU, used by no other rank.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const World& world, std::chrono::milliseconds timeout,
                                            const at::Device& device);

// The backend for CPU tensors: shared memory for all-reduces if all ranks are on one machine and
// `wanted` by all, `gloo` for everything else. Collective.
c10::intrusive_ptr<c10d::Backend> with_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<c10d::Backend>& gloo,
                                                     const World& world,
                                                     std::chrono::milliseconds timeout,
                                                     bool wanted);

}  // namespace saturate
