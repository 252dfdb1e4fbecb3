// Backends of Group: NCCL, if this build has it, and shared memory of one machine.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "saturate/group.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace saturate {

// The network interface to restrict NCCL to, since by default it listens on the machine's network
// even if all processes are on this machine; null if NCCL is to choose or the user has chosen.
const char* nccl_interface(const World& world, const Lookup& lookup);

bool has_nccl();
// `device` is a GPU, used by no other rank. Fails with kUsage unless has_nccl().
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

// Moves a CPU tensor's memory to where the other ranks can add to it, so that all-reducing it needs
// no copy; tensors that share its storage move with it. Does nothing if there is no shared memory,
// no room left in it, or the tensor is only part of its storage. REQUIRES: nobody holds a pointer
// into it.
void share_memory_of(Group& group, const at::Tensor& tensor);

// Turns shared memory on and off, for measurements: the same on all ranks, while no operation is in
// flight. Returns whether there is any.
bool use_shared_memory(Group& group, bool use);

}  // namespace saturate
