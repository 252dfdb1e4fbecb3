// The paths in a source's URI.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// PATH[,PATH...], where {000..003} expands to each number of the inclusive range, zero-padded to
// the width of the wider bound that begins with a zero (like bash and webdataset). An existing path
// is used literally. Fails with kUsage naming `scheme`.
std::vector<std::string> expand_paths(Env& env, const std::string& rest, std::string_view scheme);

// The same, and replaces folders by the files in them that end in ".SCHEME". Fails with kData if
// there are none.
std::vector<std::string> find_files(Env& env, const std::string& rest, const std::string& scheme);

// Threads that open these, which mostly wait: many if some are objects of a store; else as many as
// pay, since a local path may lie on a network's file system.
int opening_threads(const std::vector<std::string>& paths);

// Removes "KEY=VALUE" from a comma-separated list (not its first item): returns the value, or "".
std::string take_option(std::string& rest, std::string_view key);
// The names in NAME+NAME.
std::vector<std::string> take_names(std::string& rest, const std::string& key);
// The same for one of two words, and for a whole number; fails with kUsage on any other value.
std::string take_word(std::string& rest, const std::string& key, const std::string& first,
                      const std::string& second);
constexpr size_t kAnyNumber = size_t{1} << 32;
std::optional<size_t> take_number(std::string& rest, const std::string& key, size_t least,
                                  size_t most, const char* remedy);

// The only path of a source, without slashes at its end. Fails with kUsage if it is empty.
std::string take_folder(const std::string& rest, const std::string& scheme);

// The scheme for `rest` (comma-separated paths, then options), detected from the first path; "" if
// it does not exist or is not of a known format.
std::string scheme_of_path(Env& env, const std::string& rest);

}  // namespace saturate
