#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "image/codec.h"

namespace saturate {
namespace {

// Bounds-checked integers of either byte order; reads outside return nothing.
class TiffReader {
 public:
  explicit TiffReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    if (bytes.size() < 8 || bytes[0] != bytes[1]) return;
    const char order = static_cast<char>(bytes[0]);
    little_ = order == 'I';
    valid_ = (little_ || order == 'M') && read(2, 2) == 42u;
  }
  bool valid() const { return valid_; }

  std::optional<uint32_t> read(size_t offset, size_t width) const {
    if (offset > bytes_.size() || bytes_.size() - offset < width) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < width; ++i) {
      const size_t at = little_ ? offset + width - 1 - i : offset + i;
      value = value << 8 | static_cast<uint32_t>(bytes_[at]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_ = false;
  bool valid_ = false;
};

}  // namespace

std::optional<int> exif_orientation(std::span<const std::byte> tiff) {
  constexpr uint32_t kOrientation = 0x0112;
  const TiffReader reader(tiff);
  if (!reader.valid()) return std::nullopt;
  const size_t directory = *reader.read(4, 4);
  const uint32_t entries = reader.read(directory, 2).value_or(0);
  for (uint32_t i = 0; i < entries; ++i) {
    // An entry: tag (2 bytes), type (2), count (4), value left-aligned in 4.
    const size_t entry = directory + 2 + size_t(i) * 12;
    const auto tag = reader.read(entry, 2);
    if (!tag) return std::nullopt;
    if (*tag != kOrientation) continue;
    const auto type = reader.read(entry + 2, 2);
    if (reader.read(entry + 4, 4) != 1u) return std::nullopt;
    const size_t width = type == 1u ? 1 : type == 3u ? 2 : type == 4u ? 4 : 0;
    const auto value = reader.read(entry + 8, width);
    if (width == 0 || !value || *value < 1 || *value > 8) return std::nullopt;
    return static_cast<int>(*value);
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = packet.find(kName); at != packet.npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());
    const size_t before = rest.starts_with("=\"") ? 2 : rest.starts_with(">") ? 1 : 0;
    if (before == 0) continue;
    rest.remove_prefix(before);
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return std::nullopt;
}

void OrientationFinder::see(std::string_view app1) {
  constexpr std::string_view kExif{"Exif\0\0", 6}, kXmp{"http://ns.adobe.com/xap/1.0/\0", 29};
  if (app1.starts_with(kExif) && !exif_seen_) {
    exif_seen_ = true;
    from_exif_ = exif_orientation(std::as_bytes(std::span(app1.substr(kExif.size()))));
  } else if (app1.starts_with(kXmp)) {
    from_xmp_ = xmp_orientation(app1.substr(kXmp.size()));
  }
}

Orientation orientation_of(int exif) {
  const auto is_one_of = [=](std::initializer_list<int> orientations) {
    return std::ranges::find(orientations, exif) != orientations.end();
  };
  return {is_one_of({5, 6, 7, 8}), is_one_of({2, 3, 7, 8}), is_one_of({3, 4, 6, 7})};
}

void apply_orientation(const Image& in, int orientation, Image& out) {
  const ptrdiff_t w = in.width, h = in.height;
  const auto [exchanged, from_right, from_bottom] = orientation_of(orientation);
  // The source pixel of the upper left corner, and its steps right and down.
  const ptrdiff_t start = (from_bottom ? (h - 1) * w : 0) + (from_right ? w - 1 : 0);
  ptrdiff_t right = from_right ? -1 : 1, down = from_bottom ? -w : w;
  if (exchanged) std::swap(right, down);
  out.resize(exchanged ? in.height : in.width, exchanged ? in.width : in.height);
  uint8_t* to = out.pixels.data();
  for (ptrdiff_t y = 0; y < out.height; ++y) {
    for (ptrdiff_t x = 0; x < out.width; ++x, to += 3)
      std::memcpy(to, in.pixels.data() + (start + y * down + x * right) * 3, 3);
  }
}

}  // namespace saturate
