// The user's folder for files that can be made again.
#pragma once

#include <string>

namespace saturate {

// $XDG_CACHE_HOME/saturate/NAME, or ~/.cache/saturate/NAME. Empty if neither variable is set to an
// absolute path. The folder may not exist yet.
std::string user_cache_folder(const std::string& name);

}  // namespace saturate
