// Any bytes as input of the parsers of single records; the surrounding storage or library is not
// tested.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Each returns 1 for valid input and 0 for input that is correctly refused; throws or crashes if
// there is a bug.

// A recipe; a valid one is also saved and read again, to the same text.
size_t fuzz_recipe(std::span<const std::byte> bytes);
// A safetensors file: the length, the header, and as many bytes of data as follow. Every tensor of
// a valid one is within the data, is as long as its shape says, and overlaps no other.
size_t fuzz_safetensors(std::span<const std::byte> bytes);
// As a record of an LMDB, the set's description or a sample, and as the whole file, whose records'
// values must be within it.
size_t fuzz_lmdb(std::span<const std::byte> bytes);

}  // namespace saturate::testing
