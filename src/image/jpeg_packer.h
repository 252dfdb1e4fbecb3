// Writes packed JPEGs (image/packed_layout.h): copies tables, filters and entropy-coded bytes, and
// decodes nothing.
#pragma once

#include <cstddef>
#include <span>

#include "image/fast_axis.h"
#include "image/jpeg_decoder.h"
#include "image/scan_index.h"
#include "image/segmented_jpeg.h"

namespace saturate {

// An open JPEG and how to decode its crop.
struct PackSource {
  jpeg_decompress_struct& info;  // after its header
  const JpegPlanes& planes;
  BaselineScan::Columns columns;  // MCUs that the crop needs
  const SegmentedJpeg* segments;  // null: the parts are those between `points`
  const ScanPoints& points;
  const FastAxis* across[2];  // of luma, of chroma
  const FastAxis* down[2];
  ImageSize size;
};

// Writes a packed JPEG to `out`, a slot of source.size, and returns its bytes; 0 if BaselineScan
// cannot decode it in parts, or it does not fit.
size_t pack_jpeg(const PackSource& source, std::span<std::byte> out);

}  // namespace saturate
