// Sources given as a path without a scheme.
#pragma once

#include <string>

#include "saturate/data/env.h"

namespace saturate {

// The scheme for `rest` (comma-separated paths, then options), detected from the first path; "" if
// it does not exist or is not of a known format.
std::string scheme_of_path(Env& env, const std::string& rest);

}  // namespace saturate
