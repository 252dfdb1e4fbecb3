// The backend that same_host.h's shared memory provides to Group.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "saturate/data/world.h"

namespace saturate {

// The backend for CPU tensors: shared memory for all-reduces if all ranks are on one machine and
// `wanted` by all, `gloo` for everything else. Collective.
c10::intrusive_ptr<c10d::Backend> with_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<c10d::Backend>& gloo,
                                                     const World& world,
                                                     std::chrono::milliseconds timeout,
                                                     bool wanted);

}  // namespace saturate
