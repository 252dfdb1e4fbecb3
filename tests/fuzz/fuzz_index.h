// The file of an index of JPEG points, opened and used.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace saturate::testing {

// An intact index of the JPEGs that fuzz_index() decodes.
std::string index_of_fuzzed_jpegs();

// Decodes some JPEGs with the index in `bytes`, as it is and with all checksums corrected; bytes
// that do not begin like an index are changes of an intact one. Returns the number of JPEGs that
// had points there. Throws std::logic_error if an index whose checksums are not corrected changes a
// pixel.
size_t fuzz_index(std::span<const std::byte> bytes);

}  // namespace saturate::testing
