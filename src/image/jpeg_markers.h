// The markers of a JPEG file, up to its first scan.
#pragma once

#include <cstddef>
#include <span>

namespace saturate {

constexpr size_t kMarkerBytes = 2;
constexpr int kFrame0 = 0xc0, kFrame1 = 0xc1, kFrame2 = 0xc2;  // 2: progressive
constexpr int kHuffmanTables = 0xc4, kQuantTables = 0xdb;
constexpr int kRestartInterval = 0xdd, kScan = 0xda, kRestart0 = 0xd0;
constexpr int kApp0 = 0xe0, kApp1 = 0xe1, kApp14 = 0xee, kApp15 = 0xef, kComment = 0xfe;

inline int byte_at(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<int>(bytes[i]);
}
inline int big16(std::span<const std::byte> bytes, size_t i) {
  return byte_at(bytes, i) << 8 | byte_at(bytes, i + 1);
}

// Calls visit(marker, its offset, the offset after it) for each marker with a length, from the
// first up to the scan's; false if one is invalid or reaches outside.
template <class Visit>
bool walk_markers(std::span<const std::byte> file, const Visit& visit) {
  if (file.size() < kMarkerBytes || big16(file, 0) != 0xffd8) return false;
  for (size_t place = kMarkerBytes;;) {
    if (file.size() - place < 2 * kMarkerBytes || byte_at(file, place) != 0xff) return false;
    const int marker = byte_at(file, place + 1);
    const auto length = size_t(big16(file, place + kMarkerBytes));
    if (marker < kFrame0 || marker == 0xff || (marker >= kRestart0 && marker < kScan) || length < 2)
      return false;
    if (length > file.size() - place - kMarkerBytes) return false;
    const size_t end = place + kMarkerBytes + length;
    visit(marker, place, end);
    if (marker == kScan) return true;
    place = end;
  }
}

// A marker's contents, after its length.
inline std::span<const std::byte> marker_body(std::span<const std::byte> file, size_t place,
                                              size_t end) {
  return file.subspan(place + 2 * kMarkerBytes, end - place - 2 * kMarkerBytes);
}

}  // namespace saturate
