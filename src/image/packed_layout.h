// The bytes of a packed JPEG, and the plan by which they are decoded.
//
// A PackedJpeg is followed, at the offsets that it names, by the filters, a table of parts, and the
// entropy-coded bytes of the parts as they are in the file, with stuffed bytes. Offsets are from
// its first byte, numbers little-endian. It is not trusted: make_plan() refuses what would reach
// outside its bytes or the scratch memory. Compiled by nvcc too.
#pragma once

#include "image/fast_axis.h"
#include "image/packed_jpeg.h"

namespace saturate {

// Codes of one length after another, as in JHUFF_TBL.
struct PackedCodes {
  uint8_t bits[16];  // codes of each length, from 1
  uint8_t huffval[256];
};

// A FastAxis, over the decoded samples only. At `at`: uint16 first[out], weight[out][taps].
struct PackedAxis {
  uint32_t at;
  uint16_t taps;
  uint16_t low, high;  // samples in use: [low, high)
  uint16_t reserved;
};

// MCUs of one row that are decoded from their own first bit. Parts are in the order of the data.
struct PackedPart {
  uint32_t begin;  // of its bytes, in the data
  uint16_t bytes;
  uint8_t skipped;    // bits of the first byte that belong to the part before
  uint8_t left;       // bits of the last byte that belong to the next part; kPadding
  int16_t dc[3];      // predictors at the begin,
  int16_t end_dc[3];  // and at the end
};
constexpr uint8_t kPadding = 8;  // the scan ends there: less than a byte is left

constexpr uint32_t kPackedMagic = 0x314b504a;
constexpr int kPackedTables = 4;  // of Huffman codes: two of DC coefficients, two of AC
constexpr int kPackedSlack = 8;   // zeros after the data, which a wide read may reach
constexpr int kMaxPackedBlocks = 6;
// How the rows that decoding makes are placed: as columns; the last one first.
constexpr uint8_t kPackedColumns = 1, kPackedReversed = 2;

struct PackedJpeg {
  uint32_t magic;
  uint32_t parts_at;  // of PackedPart [rows][parts_across]
  uint32_t data_at, data_bytes;
  uint8_t components;                // 1 or 3
  uint8_t across, down;              // sampling factors of the first component; 1 of the others
  uint8_t checks_ends;               // whether decoding must arrive at each part's end
  uint8_t size[3];                   // samples along a side of a component's blocks: 1, 2, 4 or 8
  uint8_t dc_table[3], ac_table[3];  // 0 or 1
  uint8_t turn;                      // kPackedColumns, kPackedReversed, both or neither
  uint16_t rows, parts_across, part_mcus;
  // MCUs from the first one of a row's parts: those that are stored, and where its last part ends.
  uint16_t first_mcu, end_mcu, row_mcus;
  PackedAxis across_axis[2], down_axis[2];  // of luma, of chroma
  uint16_t quant[3][64];
  PackedCodes codes[kPackedTables];
};
static_assert(sizeof(PackedJpeg) % 4 == 0 && sizeof(PackedPart) == 20);

// ---- The plan ----------------------------------------------------------------------------------

// A component's samples, in the scratch memory: a ring of rows.
struct UnpackPlane {
  int across, down;  // blocks in an MCU
  int size;          // samples along a block's side
  int band_rows;     // rows of samples of a row of MCUs
  int ring_rows;     // row r is in slot r % ring_rows
  int pitch;         // bytes from a row to the next
  int64_t at;        // the ring's first byte
  int axis;          // 0: luma's, 1: chroma's
  int first, words;  // columns that are blended: `words` groups of four from `first`
  int row_at;        // of a blended row, in bytes
};

struct UnpackPlan {
  int planes;
  int ring_bands;  // rows of MCUs that the rings hold
  int row_bytes;   // one blended row of all planes
  UnpackPlane plane[3];
};
constexpr int kBlendedBytes = 16384;  // memory for blended rows

// `total`: of the packed JPEG, here and below.
SATURATE_HOST_DEVICE inline bool is_in_bytes(uint32_t total, uint64_t at, uint64_t bytes) {
  return at >= sizeof(PackedJpeg) && at + bytes <= total;
}

SATURATE_HOST_DEVICE inline bool is_axis(const PackedAxis& axis, uint32_t total, int out,
                                         int64_t samples) {
  return axis.at % 2 == 0 && axis.taps >= 1 && axis.taps <= kFastMaxTaps && axis.low < axis.high &&
         axis.taps <= axis.high - axis.low && axis.high <= samples &&
         is_in_bytes(total, axis.at, uint64_t(out) * 2 * (1 + uint64_t(axis.taps)));
}

SATURATE_HOST_DEVICE inline bool has_valid_numbers(const PackedJpeg& packed, uint32_t total) {
  const bool grey = packed.components == 1;
  const int blocks = packed.across * packed.down + (grey ? 0 : 2);
  if (packed.magic != kPackedMagic || (!grey && packed.components != 3)) return false;
  if (packed.across < 1 || packed.down < 1 || packed.across > 2 || packed.down > 2 ||
      (grey && blocks > 1) || blocks > kMaxPackedBlocks)
    return false;
  for (int c = 0; c < packed.components; ++c) {
    const int side = packed.size[c];
    if (packed.dc_table[c] > 1 || packed.ac_table[c] > 1 ||
        (side != 1 && side != 2 && side != 4 && side != 8))
      return false;
  }
  if (packed.rows == 0 || packed.part_mcus == 0 || packed.first_mcu >= packed.end_mcu ||
      packed.end_mcu > packed.row_mcus ||
      packed.row_mcus > uint64_t{packed.parts_across} * packed.part_mcus)
    return false;
  const uint64_t parts = uint64_t{packed.rows} * packed.parts_across;
  return packed.parts_at % 4 == 0 && packed.data_at % 4 == 0 &&
         is_in_bytes(total, packed.parts_at, parts * sizeof(PackedPart)) &&
         is_in_bytes(total, packed.data_at, uint64_t{packed.data_bytes} + kPackedSlack);
}

// Sets `plan`. False if the numbers do not fit together, or more memory is needed than there is.
// Filters and parts are not read; they must be checked too.
SATURATE_HOST_DEVICE inline bool make_plan(const PackedJpeg& packed, uint32_t total,
                                           const ImageSize& size, UnpackPlan& plan) {
  if (!has_valid_numbers(packed, total)) return false;
  int64_t band_bytes = 0, row_bytes = 0;
  for (int c = 0; c < packed.components; ++c) {
    UnpackPlane& plane = plan.plane[c];
    plane.across = c == 0 ? packed.across : 1;
    plane.down = c == 0 ? packed.down : 1;
    plane.size = packed.size[c];
    plane.axis = c == 0 ? 0 : 1;
    const int64_t columns = int64_t{packed.end_mcu - packed.first_mcu} * plane.across * plane.size;
    plane.band_rows = plane.down * plane.size;
    plane.pitch = static_cast<int>((columns + 3) / 4 * 4);
    const PackedAxis& across = packed.across_axis[plane.axis];
    if (!is_axis(across, total, size.width, columns) ||
        !is_axis(packed.down_axis[plane.axis], total, size.height,
                 int64_t{packed.rows} * plane.band_rows))
      return false;
    plane.first = across.low / 4 * 4;
    plane.words = (across.high - plane.first + 3) / 4;
    plane.row_at = static_cast<int>(row_bytes);
    row_bytes += int64_t{plane.words} * 4;
    band_bytes += int64_t{plane.pitch} * plane.band_rows;
  }
  const int64_t fit = static_cast<int64_t>(unpack_scratch_bytes(size)) / band_bytes;
  if (fit == 0 || row_bytes > kBlendedBytes) return false;
  plan.ring_bands = static_cast<int>(fit < packed.rows ? fit : packed.rows);
  plan.row_bytes = static_cast<int>(row_bytes);
  int64_t at = 0;
  for (int c = 0; c < packed.components; ++c) {
    UnpackPlane& plane = plan.plane[c];
    plane.ring_rows = plan.ring_bands * plane.band_rows;
    plane.at = at;
    at += int64_t{plane.ring_rows} * plane.pitch;
  }
  plan.planes = packed.components;
  return true;
}

// ---- Filters -----------------------------------------------------------------------------------

// A PackedAxis in memory.
struct AxisView {
  const uint16_t* first;   // [out]
  const uint16_t* weight;  // [out][taps]
  int taps;
};
SATURATE_HOST_DEVICE inline AxisView view_axis(const std::byte* packed, const PackedAxis& axis,
                                               int out) {
  const auto* const first = reinterpret_cast<const uint16_t*>(packed + axis.at);
  return {first, first + out, axis.taps};
}

// The rows of MCUs that an output row needs: [first, end).
struct Bands {
  int first, end;
};
SATURATE_HOST_DEVICE inline Bands bands_of_row(const std::byte* packed, const PackedAxis (&down)[2],
                                               const UnpackPlan& plan, int height, int y) {
  Bands bands{1 << 16, 0};
  for (int c = 0; c < plan.planes; ++c) {
    const AxisView axis = view_axis(packed, down[plan.plane[c].axis], height);
    const int first = axis.first[y], rows = plan.plane[c].band_rows;
    const int begin = first / rows, end = (first + axis.taps - 1) / rows + 1;
    bands.first = begin < bands.first ? begin : bands.first;
    bands.end = end > bands.end ? end : bands.end;
  }
  return bands;
}

// ---- Coefficients ------------------------------------------------------------------------------

// The place, row by row, of coefficient k of the zigzag order; the last one from 63 on.
SATURATE_HOST_DEVICE constexpr uint8_t zigzag_place(int k) {
  if (k >= 63) return 63;
  int diagonal = 0, first = 0, length = 1;
  while (k >= first + length) {
    first += length;
    ++diagonal;
    length = diagonal < 8 ? diagonal + 1 : 15 - diagonal;
  }
  const int low = diagonal < 8 ? 0 : diagonal - 7;
  const int along = low + k - first, across = diagonal - along;
  // Even diagonals run up, odd ones down.
  return static_cast<uint8_t>(diagonal % 2 == 0 ? across * 8 + along : along * 8 + across);
}

// ---- Codes -------------------------------------------------------------------------------------

// Where the codes of each length are: the first code that is longer or unused, and what to add to
// a code to get its place in huffval.
struct CodeLimits {
  int32_t end[17], offset[17];
};

// False if libjpeg would refuse the codes.
SATURATE_HOST_DEVICE inline bool limit_codes(const PackedCodes& codes, bool dc,
                                             CodeLimits& limits) {
  int32_t code = 0, index = 0;
  limits.end[0] = limits.offset[0] = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    const int32_t count = codes.bits[length - 1];
    limits.offset[length] = index - code;
    if (index + count > 256 || (count > 0 && code + count >= 1 << length)) return false;
    code += count;
    index += count;
    limits.end[length] = code;
  }
  for (int i = 0; dc && i < index; ++i)
    if (codes.huffval[i] > 15) return false;
  return true;
}

}  // namespace saturate
