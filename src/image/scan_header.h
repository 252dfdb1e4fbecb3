// The header of a baseline JPEG, as packing takes it: from libjpeg, or, for the plain headers of
// JPEGs in segments, straight from the file's bytes, which takes a third of the time or less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "image/jpeg_decoder.h"
#include "image/libjpeg.h"
#include "image/packed_layout.h"

namespace saturate {

struct ScanHeader {
  int width = 0, height = 0;  // of the frame, pixels
  int components = 0;         // 1 or 3
  int across = 1, down = 1;   // sampling factors of the first component; 1 for the others
  int restart = 0;            // MCUs between restart markers; 0: none
  uint8_t dc_table[3] = {}, ac_table[3] = {};  // 0 or 1
  uint16_t quant[3][64] = {};                  // of each component, row by row
  PackedCodes codes[kPackedTables] = {};       // in PackedJpeg's order; those not used may be 0
  std::span<const uint8_t> scan;               // from its first byte to the end of the file
};

// From libjpeg's state after jpeg_read_header(). False if BaselineScan cannot decode the scan, its
// sampling is not one of the above, or it is RGB or small.
bool read_scan_header(jpeg_decompress_struct& info, ScanHeader& header);
// From a file that read_jpeg_frame() accepts. False if anything is irregular, unusual, or needs
// JpegDecoder::open() to know; else equal to what libjpeg reads, and has_planes() holds.
bool read_scan_header(std::span<const std::byte> file, ScanHeader& header);

// The planes of such a file, `width` pixels of which are the image's, as
// JpegDecoder::begin_planes() reads them.
JpegPlanes plan_planes(const ScanHeader& header, int width, const Box& crop, int scale);

}  // namespace saturate
