// Makes packed JPEGs (image/packed_layout.h): copies tables, filters and entropy-coded bytes, and
// decodes nothing.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "image/fast_axis.h"
#include "image/jpeg_decoder.h"
#include "image/packed_layout.h"
#include "image/scan_header.h"
#include "image/scan_index.h"
#include "image/segmented_jpeg.h"

namespace saturate {

// An open JPEG and how to decode its crop.
struct PackSource {
  const ScanHeader& header;
  const JpegPlanes& planes;
  const SegmentedJpeg* segments;  // null: the parts are those between `points`
  const ScanPoints& points;
  const FastAxis* across[2];  // of luma, of chroma
  const FastAxis* down[2];
  ImageSize size;
  uint8_t turn;  // as PackedJpeg's
};

// Plans a packed JPEG, so that its size is known before there is memory for it, and writes it.
// Keeps the memory of its tables. Not for concurrent use.
class JpegPacker {
 public:
  // The bytes that write() writes; 0 if the source cannot be decoded in parts, or
  // unpacking would need more memory than there is.
  size_t plan(const PackSource& source);
  // Writes what was planned. REQUIRES: `out`, aligned to 4, has room for it; the source's image,
  // segments and axes are as they were.
  void write(std::byte* out) const;

 private:
  struct Axis {
    const FastAxis* axis;
    int origin;  // the first sample that is decoded
    uint32_t at;
  };

  // Bits from the first byte of the scan's data.
  struct BitRange {
    uint64_t begin, end;
    bool to_padding;  // the scan ends in the last byte
  };

  // Where that many more bytes begin, at a multiple of 4.
  uint32_t reserve(size_t bytes);
  bool describe_parts();
  bool describe_components();
  bool put_codes(int table);
  PackedAxis put_axis(const FastAxis& axis, int origin);
  void put_axes();
  bool put_parts();
  void put_segments(int row);
  bool put_between_points(int row);
  bool find_bits(int row, int part, BitRange& range) const;
  bool has_rows() const;
  // After all else: bytes of the file.
  void append(std::span<const uint8_t> data);

  const PackSource* from_ = nullptr;  // during plan()
  PackedJpeg packed_{};
  UnpackPlan plan_{};
  int first_part_ = 0;
  size_t used_ = 0;
  std::vector<Axis> axes_;
  std::vector<PackedPart> parts_;                 // [rows][parts_across]
  std::vector<std::span<const uint8_t>> pieces_;  // the data, of one row after another
};

}  // namespace saturate
