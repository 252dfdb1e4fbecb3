// Any bytes as input of a source's parser.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace saturate::testing {

// Opens `scheme`:input, where every existing file contains `bytes`, and reads all samples. An Error
// of kind kData or kUsage is allowed. Returns the number of samples read; throws or crashes if
// there is a bug.
size_t fuzz_source(const std::string& scheme, std::span<const std::byte> bytes);

}  // namespace saturate::testing
