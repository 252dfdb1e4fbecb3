// Throws any bytes at a source's parser.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace saturate::testing {

// Opens `scheme`:input, where every file there is holds `bytes`, and reads all samples. An Error of
// kind kData or kUsage is as good as none. Returns the number of samples read; throws or crashes
// where there is a bug.
size_t fuzz_source(const std::string& scheme, std::span<const std::byte> bytes);

}  // namespace saturate::testing
