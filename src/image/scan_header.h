// The header of a baseline JPEG, as packing takes it: from libjpeg, or, for the plain headers of
// JPEGs in segments, straight from the file's bytes, which takes a third of the time or less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "image/jpeg_decoder.h"
#include "image/packed_layout.h"
#include "image/segmented_jpeg.h"

namespace saturate {

// The frame's offsets are 0 if libjpeg has read it.
struct ScanHeader : JpegFrame {
  uint8_t dc_table[3] = {}, ac_table[3] = {};  // 0 or 1
  uint16_t quant[3][64] = {};                  // of each component, row by row
  PackedCodes codes[kPackedTables] = {};       // in PackedJpeg's order; those not used may be 0
  std::span<const uint8_t> scan;               // from its first byte to the end of the file
};

// From an open image, before read(). False if has_planes() is, if BaselineScan cannot decode the
// scan, or if chroma has sampling factors other than 1.
bool read_scan_header(JpegDecoder& decoder, ScanHeader& header);
// From a file whose frame read_jpeg_frame() has read. False if anything is irregular, unusual, or
// needs JpegDecoder::open() to know; else equal to what libjpeg reads, and has_planes() holds.
bool read_scan_header(std::span<const std::byte> file, const JpegFrame& frame, ScanHeader& header);

// The planes of such a file, `width` pixels of which are the image's, as
// JpegDecoder::begin_planes() reads them.
JpegPlanes plan_planes(const ScanHeader& header, int width, const Box& crop, int scale);

}  // namespace saturate
