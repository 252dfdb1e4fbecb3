// Any bytes as input of the decoders of images and masks.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Decodes `bytes` as a whole, and by the fast path with a crop chosen by the last byte. An Error of
// kind kData is allowed. Returns how many of the two succeeded; throws or crashes if there is a
// bug.
size_t fuzz_image(std::span<const std::byte> bytes);
// The same for the decoder of masks; 1 or 0.
size_t fuzz_mask(std::span<const std::byte> bytes);

}  // namespace saturate::testing
