// Sources that are named by a path alone.
#pragma once

#include <string>

#include "saturate/env.h"

namespace saturate {

// The scheme for `rest` (a path, or several with commas between them, and options behind), by what
// lies at the first path; "" where nothing lies there, or nothing that a source reads.
std::string scheme_of_path(Env& env, const std::string& rest);

}  // namespace saturate
