// The commonest JPEG by far, baseline with all components in one Huffman-coded scan, decoded faster
// than libjpeg does: a code and the value after it are found without a branch, and what lies
// outside the crop is parsed but neither stored nor transformed. Headers, tables and the inverse
// DCT remain libjpeg's.
//
// Anything irregular (damage, a missing end) is refused, for libjpeg to judge.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "image/libjpeg.h"

namespace saturate {

class SegmentedJpeg;

// One per thread; keeps its tables and buffer between images.
class BaselineScan {
 public:
  // Takes the scan that `info`, after jpeg_start_decompress(), is about to read; `info` must live,
  // and libjpeg read no more of it, until the last band. False where it has to stay libjpeg's. Of a
  // file in `segments` only those below the crop are ever looked at.
  bool start(jpeg_decompress_struct& info, const SegmentedJpeg* segments);

  // Decodes the next row of iMCUs, its columns as in info.master. Transforms it to rows[plane][i]
  // unless `skip`. False where the data is irregular.
  bool read_band(uint8_t* const* const rows[3], bool skip);

 private:
  static constexpr int kLook = 10;  // bits looked up at once

  // What the next kLook bits begin with, in 16 bits: 0 to 4, the bits of the code and of the value
  // after it; 5 to 8, those of the value; 9 to 15, the zeros before it. 0: a longer code, or none.
  struct Table {
    std::array<uint16_t, 1 << kLook> entry{};  // no codes, as in `bits`
    std::array<uint8_t, 17> bits{};            // as in JHUFF_TBL
    std::array<uint8_t, 256> huffval{};
    std::array<int32_t, 18> end{};     // [length]: codes of that length are below, else 0
    std::array<int32_t, 17> offset{};  // [length]: huffval index of a code, less the code
    bool is_dc = false;
    void build(const JHUFF_TBL& source, bool dc);
    // Looks at 16 bits where the entry is 0: as an entry, but with the code's length alone in bits
    // 0 to 4; 0 where there is no such code.
    uint32_t find_long(uint32_t look) const;
    static uint32_t meaning(int symbol, bool dc);
  };

  // Where the next bits come from; kept in registers while a band is read.
  struct Bits {
    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;
    uint64_t next = 0;  // from the top
    int count = 0;      // of them, known to be valid
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
  std::vector<uint8_t> data_;  // without stuffing, and some zeros
  Bits bits_;
  uint32_t last_dc_[3] = {};
  const SegmentedJpeg* segments_ = nullptr;
  int row_ = 0;  // of segments, the next
};

}  // namespace saturate
