// All-reduces through shared memory, used by a Group for CPU tensors if all of its ranks are on one
// machine; see shared_sum.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "saturate/group.h"

namespace saturate {

// Moves a CPU tensor's memory to where the other ranks can add to it, so that all-reducing it needs
// no copy; tensors that share its storage move with it. Does nothing if there is no shared memory,
// no room left in it, or the tensor is only part of its storage. REQUIRES: nobody holds a pointer
// into it.
void share_memory_of(Group& group, const at::Tensor& tensor);

// Turns shared memory on and off, for measurements: the same on all ranks, while no operation is in
// flight. Returns whether there is any.
bool use_shared_memory(Group& group, bool use);

}  // namespace saturate
