// Throws any bytes at the parsers of single records: what is around them, storage or a library, is
// not ours.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Each gives 1 for what is sound and 0 for what is refused as it should be; throws or crashes where
// there is a bug.

// A recipe; a sound one is also saved and read again, to the same text.
size_t fuzz_recipe(std::span<const std::byte> bytes);
// A safetensors file: the length, the header, and as many bytes of data as follow. Every tensor of
// a sound one lies within the data, is as long as its shape says, and overlaps no other.
size_t fuzz_safetensors(std::span<const std::byte> bytes);
// As a record of an LMDB, the set's description or a sample, and as the whole file, whose records'
// values must lie within it.
size_t fuzz_lmdb(std::span<const std::byte> bytes);

}  // namespace saturate::testing
