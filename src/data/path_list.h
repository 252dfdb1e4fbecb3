// The paths a source's URI names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "saturate/env.h"

namespace saturate {

// PATH[,PATH...], where {000..003} in a path stands for each number of the range, both ends
// included, padded with zeros to the width of the wider one that begins with a zero (as bash and
// webdataset have it). A path that exists as it is written is taken so. Fails with kUsage naming
// `scheme`.
std::vector<std::string> expand_paths(Env& env, const std::string& rest, std::string_view scheme);

// Cuts "KEY=VALUE" out of a comma-separated list, where it is not the first item: the value, or "".
std::string take_option(std::string& rest, std::string_view key);

}  // namespace saturate
