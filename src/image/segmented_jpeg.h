// A baseline JPEG whose single scan is split into independently decodable segments, with a table of
// their positions: the bytes of a kind 3 sample, docs/shard_format.md.
//
// A segment is `mcus` MCUs of one row of MCUs, between restart markers. The frame is padded to a
// multiple of them: the blocks to the right of the image are meaningless. Chroma upsampling must
// therefore stop at the image's edge, not at the frame's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "image/jpeg_decoder.h"
#include "saturate/data/augment.h"
#include "saturate/data/env.h"

namespace saturate {

// The contents of the markers before the scan.
struct JpegFrame {
  int width = 0, height = 0;  // of the frame, pixels
  int components = 0;         // 1 or 3
  int across = 1, down = 1;   // sampling factors of the first component; 1 for the others
  int restart = 0;            // MCUs between restart markers; 0: none
  size_t size_at = 0;         // offset of the height, then the width: two big-endian bytes each
  size_t scan_at = 0;         // offset of the first byte of entropy-coded data
  int mcu_width() const { return across * 8; }
  int mcu_height() const { return down * 8; }
};

// False if the markers are not those of a baseline JPEG supported by has_planes().
bool read_jpeg_frame(std::span<const std::byte> file, JpegFrame& frame);

// Keeps its table's memory between images. Not for concurrent use.
class SegmentedJpeg {
 public:
  // Reads and checks the table and the frame; `bytes` must outlive the use of this. Fails with
  // kData if they contradict each other, or reach outside `bytes`.
  void open(std::span<const std::byte> bytes, int width, int height, const std::string& where);

  // The image's size; the frame may be wider.
  int width() const { return width_; }
  int height() const { return height_; }
  int components() const { return frame_.components; }
  int segments_across() const { return across_; }
  int segment_mcus() const { return frame_.restart; }
  const JpegFrame& frame() const { return frame_; }
  // The whole JPEG, including padded columns.
  std::span<const std::byte> file() const { return file_; }

  // Entropy-coded data, without the marker after it. REQUIRES: row and column are in range.
  std::span<const uint8_t> segment(int row, int column) const;

  // Writes a JPEG of the fewest segments that decode `part` exactly as in the whole image, and
  // returns the part of the image that they cover. The JPEG's frame is wider than that if it
  // reaches the right border. REQUIRES: `part` is inside the image and not empty.
  Box assemble(const Box& part, std::vector<std::byte>& out) const;

 private:
  void check_segments(std::span<const std::byte> lengths, const std::string& where);
  void put_header(std::vector<std::byte>& out, int width, int height) const;

  std::span<const std::byte> file_;
  JpegFrame frame_;
  int width_ = 0, height_ = 0;
  int across_ = 0, rows_ = 0;         // segments
  std::vector<uint32_t> segment_at_;  // [rows][across], plus the end
};

// Reading some rows of an image only: from the first segment that they need to the last.
//
// Bytes with which a sample of `size` begins, and which hold its table and, in most files, its JPEG
// header, if segments are not shorter than usual.
uint64_t segment_head_bytes(int width, int height, uint64_t size);
// The bytes of such a sample after `head` that decoding `rows` takes. All of them if the head does
// not hold the table, or contradicts itself, which reading the sample then reports.
ByteRange bytes_of_rows(std::span<const std::byte> head, uint64_t size, int height, ImageRows rows);
// Writes the markers of all segments that these rows do not need, by which open() checks the table.
// REQUIRES: bytes_of_rows() returned a part, which is in `sample`.
void put_markers(std::span<std::byte> sample, int height, ImageRows rows);

// Splits JPEGs into segments and joins them again, without changing a visible coefficient. Not for
// concurrent use.
class JpegSegmenter {
 public:
  // Writes `file`, split into segments of `mcus` MCUs, in SegmentedJpeg's format, and the image's
  // size. False if it must stay unchanged: not a JPEG, broken, not supported by fast decoding, or
  // no wider than a segment. `exact`: adds a note for join() to return the same bytes, if possible.
  bool cut(std::span<const std::byte> file, int mcus, std::vector<std::byte>& out, int& width,
           int& height, bool exact = false);
  // Whether the last cut() that returned true has added the note.
  bool is_exact() const { return is_exact_; }
  // Writes a JPEG file without segments or padding: by the note, if it has a valid one, the bytes
  // of the original; then returns true. Fails with kData on invalid bytes.
  bool join(std::span<const std::byte> bytes, int width, int height, const std::string& where,
            std::vector<std::byte>& out);

 private:
  bool add_note(std::span<const std::byte> file, int width);
  std::span<const std::byte> scan_like(std::span<const std::byte> header, int width,
                                       const std::string& where);

  JpegDecoder decoder_{JpegDecoder::Markers::kAll};
  JpegDecoder header_;  // of the original
  SegmentedJpeg segmented_;
  std::vector<std::byte> file_, recoded_;
  bool is_exact_ = false;
};

}  // namespace saturate
