#include "image/jpeg_restore.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "base/text.h"
#include "image/jpeg_markers.h"
#include "image/libjpeg.h"

namespace saturate {
namespace {

constexpr std::string_view kNoteName("saturate\0", 9);
constexpr std::byte kNoteVersion{1};
constexpr size_t kNoteHead = 1 + sizeof(uint32_t);  // the version and the checksum
constexpr size_t kLead = 2 * kMarkerBytes;          // a marker and its length
// More is not a note for a photograph, but one that would fill the memory.
constexpr size_t kMaxRestoredHeader = 1 << 24;

// Operations: the end; 1 to kMaxLiteral, as many bytes, which follow; one of the others plus the
// number of a part.
constexpr size_t kNoteEnd = 0, kMaxLiteral = 0x7f, kWholePart = 0x80, kPartBody = 0xc0;
constexpr size_t kStoredParts = 59, kStandardParts = 4;

using NotePart = std::vector<std::byte>;  // a marker, its length and its body

// Markers of the standard Huffman tables, ITU T.81, K.3 to K.6, which libjpeg begins with.
std::vector<NotePart> make_standard_parts() {
  jpeg_compress_struct info{};
  JpegErrors errors;
  info.err = &errors.base;
  const bool ok = errors.guarded([&] {
    jpeg_create_compress(&info);
    info.in_color_space = JCS_YCbCr;
    info.input_components = 3;
    jpeg_set_defaults(&info);
  });
  if (!ok) throw std::bad_alloc();
  std::vector<NotePart> parts(kStandardParts);
  for (size_t i = 0; i < kStandardParts; ++i) {
    const size_t kind = i % 2, number = i / 2;  // kind 0: DC, 1: AC
    const JHUFF_TBL& codes = *(kind == 0 ? info.dc_huff_tbl_ptrs : info.ac_huff_tbl_ptrs)[number];
    constexpr size_t kBits = 16;  // of the longest code
    size_t count = 0;
    for (size_t bits = 1; bits <= kBits; ++bits) count += codes.bits[bits];
    NotePart& part = parts[i];
    part.resize(kLead + 1 + kBits + count);
    part[0] = std::byte{0xff};
    part[1] = std::byte(kHuffmanTables);
    part[3] = std::byte(part.size() - kMarkerBytes);
    part[kLead] = std::byte(kind << 4 | number);
    std::memcpy(part.data() + kLead + 1, codes.bits + 1, kBits);
    std::memcpy(part.data() + kLead + 1 + kBits, codes.huffval, count);
  }
  jpeg_destroy_compress(&info);
  return parts;
}

// The marker segments that a note refers to, and the note itself.
struct NotedHeader {
  std::vector<NotePart> parts;      // by their numbers; empty: there is none
  size_t scan_place = 0;            // offset of the scan's marker; 0: the header is not valid
  std::span<const std::byte> note;  // of its marker's body, after the name
};

NotedHeader read_noted_header(std::span<const std::byte> stored, int width) {
  NotedHeader header;
  std::vector<std::span<const std::byte>> segments;
  const bool whole = walk_markers(stored, [&](int, size_t place, size_t end) {
    segments.push_back(stored.subspan(place, end - place));
  });
  if (!whole) return header;
  header.scan_place = size_t(segments.back().data() - stored.data());
  if (segments.size() >= 2) {
    const auto last = segments[segments.size() - 2];
    const auto body = last.subspan(kLead);
    if (byte_at(last, 1) == kApp15 && as_text(body).starts_with(kNoteName)) {
      header.note = body.subspan(kNoteName.size());
      segments.erase(segments.end() - 2);
    }
  }
  header.parts.resize(kStoredParts);
  for (size_t i = 0; i < std::min(segments.size(), kStoredParts); ++i) {
    NotePart& part = header.parts[i];
    part.assign(segments[i].begin(), segments[i].end());
    const int marker = byte_at(part, 1);
    constexpr size_t kWidthAt = kLead + 3;
    if ((marker != kFrame0 && marker != kFrame1) || part.size() < kWidthAt + 2) continue;
    part[kWidthAt] = std::byte(width >> 8);
    part[kWidthAt + 1] = std::byte(width);
  }
  static const std::vector<NotePart> standard = make_standard_parts();
  header.parts.insert(header.parts.end(), standard.begin(), standard.end());
  return header;
}

void put_literal(std::span<const std::byte> bytes, std::vector<std::byte>& note) {
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), kMaxLiteral));
    note.push_back(std::byte(some.size()));
    note.insert(note.end(), some.begin(), some.end());
    bytes = bytes.subspan(some.size());
  }
}

// Appends the operations for a marker of the original. If it holds several tables, each is looked
// for separately: the stored file may have it in its own marker.
void put_operations(std::span<const std::byte> segment, const std::vector<NotePart>& parts,
                    std::vector<std::byte>& note) {
  const auto find = [&](const auto& fits) {
    return size_t(std::ranges::find_if(parts, fits) - parts.begin());
  };
  const size_t same = find([&](const NotePart& part) { return std::ranges::equal(part, segment); });
  if (same < parts.size()) return note.push_back(std::byte(kWholePart + same));
  const int marker = byte_at(segment, 1);
  const bool has_tables = marker == kHuffmanTables || marker == kQuantTables;
  size_t literal = 0, at = has_tables ? kLead : segment.size();
  while (at < segment.size()) {
    const auto rest = as_text(segment.subspan(at));
    const size_t begins = find([&](const NotePart& part) {
      return part.size() > kLead && part[1] == segment[1] &&
             rest.starts_with(as_text(part).substr(kLead));
    });
    if (begins == parts.size()) {
      ++at;
      continue;
    }
    put_literal(segment.subspan(literal, at - literal), note);
    note.push_back(std::byte(kPartBody + begins));
    literal = at += parts[begins].size() - kLead;
  }
  put_literal(segment.subspan(literal), note);
}

}  // namespace

bool add_restore_note(const RestoreNote& note, int width, std::vector<std::byte>& stored) {
  const NotedHeader header = read_noted_header(stored, width);
  constexpr size_t kMost = 0xffff;
  constexpr size_t kMostAfter = 512;  // a reader of some rows fetches them too
  if (header.scan_place == 0 || note.after.size() > kMostAfter) return false;
  std::vector<std::byte> marker(kLead + kNoteName.size() + kNoteHead);
  std::byte* const head = marker.data() + kLead + kNoteName.size();
  std::memcpy(marker.data() + kLead, kNoteName.data(), kNoteName.size());
  head[0] = kNoteVersion;
  std::memcpy(head + 1, &note.checksum, sizeof note.checksum);
  const std::span<const std::byte> original(note.header);
  walk_markers(original, [&](int, size_t place, size_t end) {
    if (marker.size() <= kMost)
      put_operations(original.subspan(place, end - place), header.parts, marker);
  });
  marker.push_back(std::byte(kNoteEnd));
  marker.insert(marker.end(), note.after.begin(), note.after.end());
  const size_t length = marker.size() - kMarkerBytes;
  if (length > kMost) return false;
  marker[0] = std::byte{0xff};
  marker[1] = std::byte(kApp15);
  marker[2] = std::byte(length >> 8);
  marker[3] = std::byte(length);
  const auto at = ptrdiff_t(header.scan_place);
  stored.insert(stored.begin() + at, marker.begin(), marker.end());
  const auto written = read_restore_note(stored, width);
  if (written && written->header == note.header) return true;
  stored.erase(stored.begin() + at, stored.begin() + at + ptrdiff_t(marker.size()));
  return false;
}

std::optional<RestoreNote> read_restore_note(std::span<const std::byte> stored, int width) {
  const NotedHeader header = read_noted_header(stored, width);
  const auto note = header.note;
  if (note.size() < kNoteHead || note[0] != kNoteVersion) return std::nullopt;
  RestoreNote out;
  std::memcpy(&out.checksum, note.data() + 1, sizeof out.checksum);
  out.header = {std::byte{0xff}, std::byte{0xd8}};
  for (size_t at = kNoteHead; at < note.size();) {
    const auto operation = std::to_integer<size_t>(note[at++]);
    if (operation == kNoteEnd) {
      out.after = note.subspan(at);
      return out;
    }
    std::span<const std::byte> bytes;
    if (operation <= kMaxLiteral) {
      if (operation > note.size() - at) return std::nullopt;
      bytes = note.subspan(at, operation);
      at += operation;
    } else {
      const size_t number = operation & (kPartBody - kWholePart - 1);
      if (number >= header.parts.size() || header.parts[number].empty()) return std::nullopt;
      bytes = header.parts[number];
      if (operation >= kPartBody) bytes = bytes.subspan(kLead);
    }
    if (bytes.size() > kMaxRestoredHeader - out.header.size()) return std::nullopt;
    out.header.insert(out.header.end(), bytes.begin(), bytes.end());
  }
  return std::nullopt;
}

}  // namespace saturate
