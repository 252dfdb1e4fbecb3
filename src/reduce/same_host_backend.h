// What Group asks of same_host.h's other side.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "saturate/world.h"

namespace saturate {

// What carries CPU tensors: shared memory for sums where all ranks are on one machine and `wanted`
// by all, and `gloo` for everything else. Returns once all ranks have come to it.
c10::intrusive_ptr<c10d::Backend> with_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<c10d::Backend>& gloo,
                                                     const World& world,
                                                     std::chrono::milliseconds timeout,
                                                     bool wanted);

}  // namespace saturate
