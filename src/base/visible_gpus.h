// Which of a machine's GPUs a process of several sees.
#pragma once

#include <optional>
#include <string>

#include "saturate/world.h"

namespace saturate {

// What CUDA_VISIBLE_DEVICES is to be for a rank; nothing where it is to stay as it is. `given`:
// what it is so far, or null; `present`: the machine's GPUs, 0 where that is not known.
// `shared_out`: all processes of the machine were given the same, as `saturate launch` does; else
// one GPU is taken to be the process's own. Fails with kUsage where they are more than the GPUs.
std::optional<std::string> visible_gpu(const World& world, const char* given, int present,
                                       bool shared_out);

}  // namespace saturate
