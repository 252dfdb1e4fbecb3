// The orientation a camera noted beside the pixels, and turning the pixels upright.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "saturate/image.h"

namespace saturate {

// The Orientation tag (0x0112) of the first directory of a TIFF structure, as EXIF holds it after
// its "Exif\0\0". Empty where the tag is absent or the structure is damaged.
std::optional<int> exif_orientation(std::span<const std::byte> tiff);

// The tiff:Orientation of an XMP packet, which Pillow falls back on where EXIF has none.
std::optional<int> xmp_orientation(std::string_view packet);

// Whether an image of this orientation has its width and height exchanged when upright.
inline bool exchanges_axes(int orientation) {
  return orientation >= 5 && orientation <= 8;
}

// Writes `in` upright to `out`. Values outside [1, 8] mean upright already.
void apply_orientation(const Image& in, int orientation, Image& out);

}  // namespace saturate
