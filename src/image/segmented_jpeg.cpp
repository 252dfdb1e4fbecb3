#include "image/segmented_jpeg.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checksum.h"
#include "base/text.h"
#include "image/codec.h"
#include "image/jpeg_markers.h"
#include "image/jpeg_restore.h"

namespace saturate {
namespace {

constexpr size_t kTableHead = 8;  // bytes before the lengths
// Segmenting holds all coefficients twice, up to 12 bytes per pixel.
constexpr int64_t kMaxCutPixels = int64_t{1} << 25;

template <class T>
T little(std::span<const std::byte> bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i, sizeof value);
  return value;
}

void put_big16(std::byte* to, int value) {
  to[0] = std::byte(value >> 8);
  to[1] = std::byte(value);
}

[[noreturn]] void fail_table(const std::string& what, const std::string& where) {
  fail_image("JPEG in segments has " + what, where);
}

// `body`: a frame header after its length.
bool read_components(std::span<const std::byte> body, JpegFrame& frame) {
  if (body.size() < 6 || byte_at(body, 0) != 8) return false;
  frame.height = big16(body, 1);
  frame.width = big16(body, 3);
  frame.components = byte_at(body, 5);
  if (frame.width == 0 || frame.height == 0) return false;
  if ((frame.components != 1 && frame.components != 3) ||
      body.size() != 6 + 3 * size_t(frame.components))
    return false;
  frame.across = byte_at(body, 7) >> 4;
  frame.down = byte_at(body, 7) & 15;
  for (size_t c = 1; c < size_t(frame.components); ++c)
    if (byte_at(body, 7 + 3 * c) != 0x11) return false;
  const bool full = frame.across == 1 && frame.down == 1;
  return full ||
         (frame.components == 3 && frame.across == 2 && (frame.down == 1 || frame.down == 2));
}

// Whether decoding needs a marker before the scan: not EXIF, profiles or comments.
bool is_needed(int marker) {
  return marker <= kApp0 || marker == kApp14;
}

}  // namespace

bool read_jpeg_frame(std::span<const std::byte> file, JpegFrame& frame) {
  frame = {};
  bool plain = true;
  int frames = 0;
  const bool whole = walk_markers(file, [&](int marker, size_t place, size_t end) {
    const auto body = marker_body(file, place, end);
    switch (marker) {
      case kFrame0:
      case kFrame1:
        ++frames;
        frame.size_at = place + 2 * kMarkerBytes + 1;
        plain = plain && read_components(body, frame);
        break;
      case kRestartInterval:
        plain = plain && body.size() == 2;
        if (plain) frame.restart = big16(body, 0);
        break;
      case kScan:
        frame.scan_at = end;
        plain = plain && !body.empty() && byte_at(body, 0) == frame.components;
        break;
      default:
        plain = plain && (marker >= kApp0 || marker == kHuffmanTables || marker == kQuantTables);
    }
  });
  return whole && plain && frames == 1;
}

void SegmentedJpeg::open(std::span<const std::byte> bytes, int width, int height,
                         const std::string& where) {
  width_ = width;
  height_ = height;
  if (bytes.size() < kTableHead) fail_table("no segment table", where);
  across_ = little<uint16_t>(bytes, 0);
  rows_ = little<uint16_t>(bytes, 2);
  const auto scan_at = size_t{little<uint32_t>(bytes, 4)};
  const size_t lengths = 2 * size_t(across_) * size_t(rows_);
  if (across_ == 0 || rows_ == 0 || lengths > bytes.size() - kTableHead)
    fail_table("a table that reaches outside the sample", where);
  file_ = bytes.subspan(kTableHead + lengths);
  if (!read_jpeg_frame(file_, frame_)) fail_table("a header that is damaged or not its own", where);
  const int mcus = divide_up(width, frame_.mcu_width());
  const bool fits = width > 0 && frame_.restart > 0 && height == frame_.height &&
                    rows_ == divide_up(height, frame_.mcu_height()) &&
                    across_ == divide_up(mcus, frame_.restart) &&
                    frame_.width == across_ * frame_.restart * frame_.mcu_width();
  if (!fits || scan_at != frame_.scan_at)
    fail_table("a table whose size does not match the image", where);
  check_segments(bytes.subspan(kTableHead, lengths), where);
}

// The table is correct if each segment ends at its own marker, and the last at the end of the file.
void SegmentedJpeg::check_segments(std::span<const std::byte> lengths, const std::string& where) {
  const size_t count = lengths.size() / 2;
  segment_at_.resize(count + 1);
  size_t place = frame_.scan_at;
  for (size_t i = 0; i < count; ++i) {
    segment_at_[i] = uint32_t(place);
    place += little<uint16_t>(lengths, 2 * i);
    const int marker = i + 1 == count ? 0xffd9 : 0xff00 + kRestart0 + int(i % 8);
    if (place > file_.size() || file_.size() - place < kMarkerBytes ||
        big16(file_, place) != marker)
      fail_table("a segment that does not end at its marker", where);
    place += kMarkerBytes;
  }
  segment_at_[count] = uint32_t(place);
  if (place != file_.size()) fail_table("bytes after the last segment", where);
}

std::span<const uint8_t> SegmentedJpeg::segment(int row, int column) const {
  const size_t i = size_t(row) * size_t(across_) + size_t(column);
  const auto* data = reinterpret_cast<const uint8_t*>(file_.data());
  return {data + segment_at_[i], segment_at_[i + 1] - kMarkerBytes - segment_at_[i]};
}

// Writes the header with a frame of that size.
void SegmentedJpeg::put_header(std::vector<std::byte>& out, int width, int height) const {
  out.assign(file_.begin(), file_.begin() + kMarkerBytes);
  walk_markers(file_, [&](int marker, size_t place, size_t end) {
    if (!is_needed(marker)) return;
    const size_t size_at = out.size() + frame_.size_at - place;
    out.insert(out.end(), file_.begin() + ptrdiff_t(place), file_.begin() + ptrdiff_t(end));
    if (frame_.size_at < place || frame_.size_at >= end) return;
    put_big16(out.data() + size_at, height);
    put_big16(out.data() + size_at + 2, width);
  });
}

Box SegmentedJpeg::assemble(const Box& part, std::vector<std::byte>& out) const {
  // Chroma upsampling reaches one of its samples, two pixels, to either side.
  const int beside = frame_.across == 2 ? 2 : 0, above = frame_.down == 2 ? 2 : 0;
  const int wide = frame_.restart * frame_.mcu_width(), high = frame_.mcu_height();
  const int left = std::max(part.x - beside, 0) / wide;
  const int right = divide_up(std::min(part.x + part.width + beside, width_), wide);
  const int top = std::max(part.y - above, 0) / high;
  const int bottom = divide_up(std::min(part.y + part.height + above, height_), high);
  const Box held{left * wide, top * high, std::min(right * wide, width_) - left * wide,
                 std::min(bottom * high, height_) - top * high};
  put_header(out, (right - left) * wide, held.height);
  int restarts = 0;
  for (int row = top; row < bottom; ++row) {
    // The segments of a row are copied together, including the markers after them.
    const size_t first = size_t(row) * size_t(across_) + size_t(left);
    const size_t end = first + size_t(right - left);
    const size_t to = out.size();
    out.insert(out.end(), file_.begin() + segment_at_[first], file_.begin() + segment_at_[end]);
    for (size_t i = first + 1; i <= end; ++i)
      put_big16(out.data() + to + segment_at_[i] - segment_at_[first] - kMarkerBytes,
                0xff00 + kRestart0 + restarts++ % 8);
  }
  put_big16(out.data() + out.size() - kMarkerBytes, 0xffd9);
  return held;
}

uint64_t segment_head_bytes(int width, int height, uint64_t size) {
  constexpr int kSegmentPixels = 32, kMcuPixels = 8;  // the least: 4 MCUs of 4:4:4
  constexpr uint64_t kHeader = 1024;
  const auto segments =
      uint64_t(divide_up(width, kSegmentPixels)) * uint64_t(divide_up(height, kMcuPixels));
  return std::min(size, kTableHead + 2 * segments + kHeader);
}

namespace {

// The segments of some rows of an image.
struct RowSegments {
  uint64_t scan_at = 0;  // of the first segment, from the start of the sample
  size_t count = 0;      // of the image
  size_t first = 0, end = 0;
  bool contains(size_t segment) const { return segment >= first && segment < end; }
};

std::optional<RowSegments> segments_of_rows(std::span<const std::byte> head, int height,
                                            ImageRows rows) {
  if (head.size() < kTableHead) return std::nullopt;
  const size_t across = little<uint16_t>(head, 0);
  const int down = little<uint16_t>(head, 2);
  const size_t count = across * size_t(down);
  if (count == 0 || 2 * count > head.size() - kTableHead) return std::nullopt;
  const int high = down == divide_up(height, 8) ? 8 : 16;
  if (down != divide_up(height, high)) return std::nullopt;
  // Chroma upsampling reaches two pixels beyond them.
  const auto top = size_t(std::max(rows.first - 2, 0) / high);
  const auto bottom = size_t(divide_up(std::min(rows.end + 2, height), high));
  return RowSegments{kTableHead + 2 * count + little<uint32_t>(head, 4), count, top * across,
                     bottom * across};
}

// Calls visit(segment, its offset in the sample, the offset after its marker). Returns the last.
template <class Visit>
uint64_t walk_segments(std::span<const std::byte> head, const RowSegments& segments,
                       const Visit& visit) {
  uint64_t end = segments.scan_at;
  for (size_t i = 0; i < segments.count; ++i) {
    const uint64_t begin = end;
    end += little<uint16_t>(head, kTableHead + 2 * i) + kMarkerBytes;
    visit(i, begin, end);
  }
  return end;
}

}  // namespace

ByteRange bytes_of_rows(std::span<const std::byte> head, uint64_t size, int height,
                        ImageRows rows) {
  const ByteRange all{head.size(), size - head.size()};
  const auto segments = segments_of_rows(head, height, rows);
  if (!segments) return all;
  uint64_t first = head.size(), end = first;
  const uint64_t total =
      walk_segments(head, *segments, [&](size_t segment, uint64_t begin, uint64_t after) {
        // The JPEG's header may not be complete yet.
        if (segment == segments->first && segments->scan_at <= head.size())
          first = std::max(first, begin);
        if (segments->contains(segment)) end = std::max(end, after);
      });
  return total == size && first <= end ? ByteRange{first, end - first} : all;
}

void put_markers(std::span<std::byte> sample, int height, ImageRows rows) {
  const auto segments = segments_of_rows(sample, height, rows);
  if (!segments) return;
  walk_segments(sample, *segments, [&](size_t segment, uint64_t, uint64_t end) {
    if (segments->contains(segment) || end > sample.size()) return;
    const bool is_last = segment + 1 == segments->count;
    put_big16(sample.data() + end - kMarkerBytes,
              is_last ? 0xffd9 : 0xff00 + kRestart0 + int(segment % 8));
  });
}

namespace {

// The table, then the file. False if a segment is missing or its length exceeds 16 bits.
bool put_table(std::span<const std::byte> file, size_t across, size_t rows,
               std::vector<std::byte>& out) {
  JpegFrame frame;
  if (across > 0xffff || rows > 0xffff || !read_jpeg_frame(file, frame)) return false;
  std::vector<uint16_t> lengths;
  size_t begin = frame.scan_at;
  for (size_t place = begin; place + 1 < file.size(); ++place) {
    const auto* found = static_cast<const std::byte*>(
        std::memchr(file.data() + place, 0xff, file.size() - 1 - place));
    if (found == nullptr) return false;
    place = size_t(found - file.data());
    if (found[1] == std::byte{0}) continue;
    if (place - begin > 0xffff) return false;
    lengths.push_back(uint16_t(place - begin));
    begin = place + kMarkerBytes;
  }
  if (lengths.size() != across * rows) return false;
  out.resize(kTableHead + 2 * lengths.size() + file.size());
  const auto head = uint32_t(across | rows << 16), scan_at = uint32_t(frame.scan_at);
  std::memcpy(out.data(), &head, sizeof head);
  std::memcpy(out.data() + 4, &scan_at, sizeof scan_at);
  std::memcpy(out.data() + kTableHead, lengths.data(), 2 * lengths.size());
  std::memcpy(out.data() + kTableHead + 2 * lengths.size(), file.data(), file.size());
  return true;
}

}  // namespace

bool JpegSegmenter::cut(std::span<const std::byte> file, int mcus, std::vector<std::byte>& out,
                        int& width, int& height, bool exact) {
  is_exact_ = false;
  if (file.size() < kMarkerBytes || big16(file, 0) != 0xffd8) return false;
  const CodecSession session(decoder_);
  try {
    const CodecHeader header = decoder_.open(file, "");
    if (!decoder_.has_planes() || !orientation_of(header.orientation).is_upright()) return false;
    const auto [mcu_width, mcu_height] = decoder_.mcu_size();
    const int columns = divide_up(header.width, mcu_width);
    const int across = divide_up(columns, mcus), padded = across * mcus * mcu_width;
    if (columns <= mcus || padded > JPEG_MAX_DIMENSION) return false;
    if (int64_t{padded} * header.height > kMaxCutPixels) return false;
    decoder_.transcode("", padded, mcus, file_);
    width = header.width;
    height = header.height;
    is_exact_ = exact && add_note(file, width);
    return put_table(file_, size_t(across), size_t(divide_up(header.height, mcu_height)), out);
  } catch (const Error&) {
    return false;  // reading the image will report it
  }
}

// The open image's entropy-coded data as a file with that header has them; empty if it cannot have
// them.
std::span<const std::byte> JpegSegmenter::scan_like(std::span<const std::byte> header, int width,
                                                    const std::string& where) {
  const CodecSession session(header_);
  try {
    if (header_.open(header, where).width != width) return {};
  } catch (const Error&) {
    return {};
  }
  if (!decoder_.transcode_like(where, header_, recoded_)) return {};
  size_t begin = recoded_.size() - kMarkerBytes;
  const size_t end = begin;  // before the end of the image
  walk_markers(recoded_, [&](int marker, size_t, size_t after) {
    if (marker == kScan) begin = after;
  });
  return std::span(recoded_).subspan(begin, end - begin);
}

// REQUIRES: file_ has the segments of `file`, which the decoder has read.
bool JpegSegmenter::add_note(std::span<const std::byte> file, int width) {
  JpegFrame frame;
  if (!read_jpeg_frame(file, frame)) return false;
  const auto header = file.first(frame.scan_at), rest = file.subspan(frame.scan_at);
  const auto scan = scan_like(header, width, "");
  if (scan.empty() || !as_text(rest).starts_with(as_text(scan))) return false;
  const RestoreNote note{
      {header.begin(), header.end()}, rest.subspan(scan.size()), checksum_of(file)};
  return add_restore_note(note, width, file_);
}

bool JpegSegmenter::join(std::span<const std::byte> bytes, int width, int height,
                         const std::string& where, std::vector<std::byte>& out) {
  segmented_.open(bytes, width, height, where);
  if (int64_t{width} * height > Decoder::kDefaultMaxPixels)
    fail_image("JPEG in segments has too many pixels", where);
  const CodecSession session(decoder_);
  const CodecHeader frame = decoder_.open(segmented_.file(), where);
  if (int64_t{frame.width} * frame.height > Decoder::kDefaultMaxPixels)
    fail_image("JPEG in segments has a frame of too many pixels", where);
  if (const auto note = read_restore_note(segmented_.file(), width)) {
    const auto scan = scan_like(note->header, width, where);
    out = note->header;
    out.insert(out.end(), scan.begin(), scan.end());
    out.insert(out.end(), note->after.begin(), note->after.end());
    if (!scan.empty() && checksum_of(out) == note->checksum) return true;
  }
  decoder_.transcode(where, width, 0, out);
  return false;
}

}  // namespace saturate
