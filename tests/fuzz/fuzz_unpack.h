// Anything in the bytes of a packed JPEG, and of a JPEG in segments.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Unpacks `bytes`, completed by zeros, and a sound packed JPEG that they change: three
// bytes a change, where and to which value. Returns how many of the two were decoded. Throws
// std::logic_error if one neither fails nor decodes.
size_t fuzz_unpack(std::span<const std::byte> bytes);

// Decodes a crop of a sound JPEG in segments that `bytes` change in the same way, and joins one
// after changing its header, which holds the note of the original. Returns whether it was decoded.
// Throws std::logic_error if an error is not of kind kData.
size_t fuzz_segments(std::span<const std::byte> bytes);

}  // namespace saturate::testing
