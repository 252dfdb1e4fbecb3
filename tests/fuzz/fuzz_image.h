// Throws any bytes at the image decoders.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// Decodes `bytes` whole, and by the fast path with a crop that their last byte chooses. An Error of
// kind kData is as good as none. Returns how many of the two gave pixels; throws or crashes where
// there is a bug.
size_t fuzz_image(std::span<const std::byte> bytes);

}  // namespace saturate::testing
