// Any bytes as input of the reader of pickled tensors.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Reads `bytes` as the pickle of an archive, and as a legacy file. An Error of kind kRun is
// allowed. Returns the number of tensors; throws or crashes if there is a bug.
size_t fuzz_pickle(std::span<const std::byte> bytes);

}  // namespace saturate::testing
