// The paths in a source's URI.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// PATH[,PATH...], where {000..003} expands to each number of the inclusive range, zero-padded to
// the width of the wider bound that begins with a zero (like bash and webdataset). An existing path
// is used literally. Fails with kUsage naming `scheme`.
std::vector<std::string> expand_paths(Env& env, const std::string& rest, std::string_view scheme);

// Removes "KEY=VALUE" from a comma-separated list (not its first item): returns the value, or "".
std::string take_option(std::string& rest, std::string_view key);

struct NumberRange {
  uint64_t least, most, otherwise;  // the last: if the option is not given
};

// As take_option(), for a whole number. Fails with kUsage naming `scheme` if it is not one in the
// range.
uint64_t take_number(std::string& rest, std::string_view key, const NumberRange& range,
                     std::string_view scheme);

// The scheme for `rest` (comma-separated paths, then options), detected from the first path; "" if
// it does not exist or is not of a known format.
std::string scheme_of_path(Env& env, const std::string& rest);

}  // namespace saturate
