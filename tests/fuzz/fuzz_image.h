// Throws any bytes at the decoders of images and masks.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Decodes `bytes` whole, and by the fast path with a crop that their last byte chooses. An Error of
// kind kData is as good as none. Returns how many of the two gave pixels; throws or crashes where
// there is a bug.
size_t fuzz_image(std::span<const std::byte> bytes);
// The same for the decoder of masks; 1 or 0.
size_t fuzz_mask(std::span<const std::byte> bytes);

}  // namespace saturate::testing
