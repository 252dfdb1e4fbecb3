// Sums through shared memory, which a Group uses for CPU tensors where all of its ranks are on one
// machine; see base/shared_sum.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "saturate/group.h"

namespace saturate {

// Moves the memory of a CPU tensor to where the other ranks can add to it, so that sums of it need
// no copy; the tensors that share its storage go with it. Does nothing where there is no shared
// memory, no room left in it, or the tensor is only a part of its storage. REQUIRES: nobody holds a
// pointer into it.
void share_memory_of(Group& group, const at::Tensor& tensor);

// Turns it off and on, for measurements: the same on all ranks, while nothing is under way. Whether
// there is any.
bool use_shared_memory(Group& group, bool use);

}  // namespace saturate
