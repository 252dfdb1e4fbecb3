// The processes of this machine that train together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "saturate/data/error.h"
#include "saturate/data/world.h"

namespace saturate {

// At least 1, also if it is not known.
inline uint64_t local_processes() {
  try {
    return uint64_t(std::max(1, this_world().local_size));
  } catch (const Error&) {
    return 1;  // contradictory variables are reported where ranks are needed
  }
}

}  // namespace saturate
