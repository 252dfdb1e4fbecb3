// A decoder for the most common kind of JPEG, baseline with all components in one Huffman-coded
// scan, faster than libjpeg: a code and its value are found without a branch, and coefficients
// outside the crop are parsed but neither stored nor transformed. libjpeg still handles headers,
// tables and the inverse DCT.
//
// Anything irregular (damage, a missing end) is left to libjpeg.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "image/libjpeg.h"

namespace saturate {

class SegmentedJpeg;

// One per thread; keeps its tables and buffer between images.
class BaselineScan {
 public:
  // Begins to decode the scan that `info`, after jpeg_start_decompress(), is about to read; `info`
  // must live until the last band, and libjpeg must not read on meanwhile. False if libjpeg has to
  // decode it. With `segments`, only those below the crop are read.
  bool start(jpeg_decompress_struct& info, const SegmentedJpeg* segments);

  // Decodes the next row of iMCUs, with the columns in info.master. Transforms it to rows[plane][i]
  // unless `skip`. False on irregular data.
  bool read_band(uint8_t* const* const rows[3], bool skip);

 private:
  static constexpr int kLook = 10;  // bits per table lookup

  // Prefix of the next kLook bits, in 16 bits: 0 to 4, length of code plus value; 5 to 8, length of
  // the value; 9 to 15, run of zeros before it. 0: a longer code, or none.
  struct Table {
    std::array<uint16_t, 1 << kLook> entry{};  // no codes, as in `bits`
    std::array<uint8_t, 17> bits{};            // as in JHUFF_TBL
    std::array<uint8_t, 256> huffval{};
    std::array<int32_t, 18> end{};     // [length]: exclusive upper bound of codes of that length,
                                       // else 0
    std::array<int32_t, 17> offset{};  // [length]: huffval index of a code, less the code
    bool is_dc = false;
    void build(const JHUFF_TBL& source, bool dc);
    // For an entry of 0, looks up 16 bits: the result is like an entry, but bits 0 to 4 are the
    // code's length only; 0 if there is no such code.
    uint32_t find_long(uint32_t look) const;
    static uint32_t meaning(int symbol, bool dc);
  };

  // Bit-reader state; kept in registers while a band is read.
  struct Bits {
    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;
    uint64_t next = 0;  // left-aligned
    int count = 0;      // number of valid bits
    void refill();
  };
  struct Symbol {
    uint32_t zeros;
    int value;
  };

  const uint8_t* unstuff(std::span<const uint8_t> data);
  bool enter_segment(int row, int column);
  static bool read_symbol(Bits& bits, const Table& table, Symbol& symbol);
  template <class Take>
  static bool read_block(Bits& bits, const Table& dc, const Table& ac, uint32_t& last_dc,
                         const Take& take);
  bool read_columns(JDIMENSION begin, JDIMENSION end, uint8_t* const* const rows[3], bool skip);
  bool read_band_inline(uint8_t* const* const rows[3], bool skip);
  bool read_band_bmi2(uint8_t* const* const rows[3], bool skip);

  jpeg_decompress_struct* info_ = nullptr;
  Table dc_[2], ac_[2];
  std::vector<uint8_t> data_;  // without stuffing, plus padding zeros
  Bits bits_;
  uint32_t last_dc_[3] = {};
  const SegmentedJpeg* segments_ = nullptr;
  int row_ = 0;  // next row of segments
};

}  // namespace saturate
