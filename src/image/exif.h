// The orientation stored by a camera, and rotation of the pixels to upright.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "saturate/data/image.h"

namespace saturate {

// The Orientation tag (0x0112) of a TIFF structure's first directory, as stored in EXIF after
// "Exif\0\0". Empty if the tag is missing or the structure is damaged.
std::optional<int> exif_orientation(std::span<const std::byte> tiff);

// The tiff:Orientation of an XMP packet, Pillow's fallback if EXIF has none.
std::optional<int> xmp_orientation(std::string_view packet);

// Whether making an image of this orientation upright swaps width and height.
inline bool exchanges_axes(int orientation) {
  return orientation >= 5 && orientation <= 8;
}

// Writes `in` upright to `out`. Values outside [1, 8] count as upright.
void apply_orientation(const Image& in, int orientation, Image& out);

}  // namespace saturate
