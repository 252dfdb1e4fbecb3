// Shared by the decoders: headers, errors and orientation.
//
// libjpeg and libpng report errors through callbacks that must not return. Both decoders leave them
// by longjmp to a guarded() call, never by a C++ exception through C frames; so no object with a
// destructor may live between guarded() and the library call.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "saturate/data/error.h"
#include "saturate/data/image.h"

namespace saturate {

struct CodecHeader {
  int width, height;  // as stored
  int components;     // as ImageInfo
  int orientation;    // EXIF, 1 to 8, if known before the pixels
};

// Closes a codec at the end of a scope, so that it keeps neither memory nor a pointer to the data.
template <class Codec>
struct CodecSession {
  explicit CodecSession(Codec& opened) : codec(opened) {}
  Codec& codec;
  ~CodecSession() { codec.close(); }
};

inline std::string size_text(int width, int height) {
  return std::to_string(width) + " x " + std::to_string(height);
}

// By the first bytes; empty for anything else.
std::optional<ImageFormat> image_format_of(std::span<const std::byte> bytes);
// ".jpg", ".png", ".webp" or ".avif".
const char* ending_of(ImageFormat format);

[[noreturn]] inline void fail_image(
    std::string what, const std::string& where,
    std::source_location thrown_at = std::source_location::current()) {
  fail(ErrorKind::kData, std::move(what), where,
       "Replace or remove the file, or set data.on_error=skip to skip such samples", thrown_at);
}

// The Orientation tag (0x0112) of a TIFF structure's first directory, as stored in EXIF after
// "Exif\0\0". Empty if the tag is missing or the structure is damaged.
std::optional<int> exif_orientation(std::span<const std::byte> tiff);

// The tiff:Orientation of an XMP packet, Pillow's fallback if EXIF has none.
std::optional<int> xmp_orientation(std::string_view packet);

// The orientation of a JPEG from its APP1 markers: EXIF's first, else the last XMP's.
class OrientationFinder {
 public:
  void see(std::string_view app1);
  int found() const { return from_exif_.value_or(from_xmp_.value_or(1)); }

 private:
  bool exif_seen_ = false;
  std::optional<int> from_exif_, from_xmp_;
};

// How the stored pixels of an orientation differ from the upright image.
struct Orientation {
  bool exchanged = false;                        // its rows are stored as columns
  bool from_right = false, from_bottom = false;  // its upper left pixel is stored there
  bool is_upright() const { return !exchanged && !from_right && !from_bottom; }
};
// Values outside [1, 8] count as upright.
Orientation orientation_of(int exif);

// Writes `in` upright to `out`.
void apply_orientation(const Image& in, int orientation, Image& out);

}  // namespace saturate
