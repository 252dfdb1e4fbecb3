// A decoder for baseline JPEGs with all components in one scan, faster than libjpeg: one look-up
// finds up to two codes with their values, without a branch; coefficients outside the crop, and all
// but the first of a block that is reduced to one sample, are parsed but neither stored nor
// transformed; and if positions inside the scan are known, the parts that no crop needs are not
// read, and two parts of a row are decoded alternately. Restart markers are such positions. libjpeg
// handles headers and tables.
//
// Blocks that are reduced to 4 or 2 samples a side are stored as a whole: libjpeg's transforms use
// 49 and 25 of their coefficients, up to the last place of the zigzag order.
//
// Anything irregular (damage, a missing end) is left to libjpeg.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "image/block_reader.h"
#include "image/huffman_table.h"
#include "image/inverse_dct.h"
#include "image/libjpeg.h"
#include "image/scan_index.h"

namespace saturate {

class SegmentedJpeg;

// One per thread; keeps its tables and buffers between images.
class BaselineScan {
 public:
  // The part of a row of MCUs that a crop needs.
  struct Columns {
    int first = 0, end = 0;  // MCUs
  };
  // `choose`: the transform for each size of block.
  explicit BaselineScan(InverseDct (*choose)(int size) = inverse_dct);

  // Whether the scan that `info`, after jpeg_read_header(), is about to read is of this kind, and
  // has tables, which may be irregular.
  static bool supports(jpeg_decompress_struct& info);
  // Whether there is a restart inside the scan. An interval may also be longer than that.
  static bool has_restarts(const jpeg_decompress_struct& info);
  // MCUs between the points of a row.
  static int point_mcus(int mcu_width);

  // Begins to decode the scan that `info`, after jpeg_read_header() and
  // jpeg_calc_output_dimensions(), is about to read; `info` must live until the last band, and
  // libjpeg must not read on meanwhile. False if libjpeg has to decode it. With `segments`, only
  // those below the crop are read. Without, `points` is used if it has any, and extended, unless it
  // is null, or the scan has restarts or four components: REQUIRES that they were found in this
  // scan.
  bool start(jpeg_decompress_struct& info, Columns columns, const SegmentedJpeg* segments,
             ScanPoints* points);

  // Decodes the next row of MCUs. Transforms its columns to rows[plane][i] unless `skip`. False on
  // irregular data, or if a part begins at points that do not agree with the data.
  bool read_band(uint8_t* const* const* rows, bool skip);

 private:
  // MCUs that are transformed together; their blocks fill groups.
  static constexpr int kChunk = 8;
  static constexpr int kMaxBlocks = D_MAX_BLOCKS_IN_MCU * kChunk;
  static constexpr int kMostComponents = 4;

  struct Component {
    int across = 1, down = 1;  // blocks in an MCU
    int size = 8;              // of a block's samples
    uint32_t base = 0;        // of its groups in a lane, then those of its second row of blocks ...
    uint32_t row_values = 0;  // values of a row of its groups
    const HuffmanTable *dc = nullptr, *ac = nullptr;
    InverseDct transform = nullptr;
    alignas(64) uint16_t quant[DCTSIZE2] = {};
  };
  // A block of a chunk.
  struct Place {
    const HuffmanTable *dc, *ac;
    uint32_t offset;
    uint8_t component;
    bool dc_alone;  // reduced to one sample: other coefficients are not used
  };

  // A place in the scan at which MCUs are being read, and those not yet transformed.
  struct Lane {
    alignas(64) std::array<int16_t, kMaxBlocks * DCTSIZE2> blocks{};
    std::vector<uint8_t> data;            // without stuffing, plus padding zeros
    std::vector<uint32_t> stuffed;        // in `data`: bytes after which a stuffed one was removed
    size_t counted = 0;                   // of `stuffed`, those before the last point noted
    const uint8_t* source = nullptr;      // where `data` comes from, and
    const uint8_t* source_end = nullptr;  // the marker after it
    BitReader bits;
    uint32_t dc[kMostComponents] = {};
    int mcu = 0, end = 0;            // of the row: the next one, and the first not to be read
    int64_t scan_mcu = 0;            // with restarts: the next one of the scan, between rows
    int chunk = 0;                   // first MCU of the chunk
    uint32_t place = 0, stop = 0;    // in places_: the next block, and where to stop
    uint64_t expected = UINT64_MAX;  // bits from the start of `data` to the end of the part
    bool failed = false;
  };

  bool read_tables(const jpeg_decompress_struct& info);
  void plan_chunk();
  void unstuff(Lane& lane, const uint8_t* from, const uint8_t* end);
  bool open_scan();
  bool enter_after_known_rows(Lane& lane);
  bool enter_boundary(Lane& lane);
  bool enter_segment(Lane& lane);
  const uint8_t* interval(int64_t number);
  bool enter_interval(Lane& lane, int64_t number);
  bool seek(Lane& lane, int64_t scan_mcu);
  bool read_intervals();
  bool enter_point(Lane& lane, size_t index, size_t limit);
  bool arrives_at(const Lane& lane, size_t index) const;
  bool ends_scan(const Lane& lane) const;
  void note_point(Lane& lane, int row, int part);
  int next_stop(const Lane& lane) const;
  bool read_sequential(bool skip);
  int split(int first, int last) const;
  bool open_part(Lane& lane, int from, int end);
  bool read_parts();

  bool read_lanes(Lane& a, Lane* b);
  bool skip_to(Lane& lane, int end);
  void transform(Lane& lane);
  bool begin(Lane& lane);
  bool arrive(Lane& lane);
  void begin_block(BlockReader& reader, Lane& lane);
  bool end_block(BlockReader& reader, Lane& lane);
  template <bool kWide, bool kReduced>
  bool turn(BlockReader& reader, const Lane& lane);
  template <bool kTwo, bool kWide, bool kReduced>
  void read_blocks(Lane& a, Lane& b);
  template <bool kReduced>
  void read_either(Lane& a, Lane* b);
  void read_blocks_plain(Lane& a, Lane* b);
  void read_blocks_bmi2(Lane& a, Lane* b);
  void read_reduced_plain(Lane& a, Lane* b);
  void read_reduced_bmi2(Lane& a, Lane* b);
  bool parse(Lane& lane, int mcus);
  template <bool kWide>
  bool parse_blocks(Lane& lane, int mcus);
  bool parse_plain(Lane& lane, int mcus);
  bool parse_bmi2(Lane& lane, int mcus);

  InverseDct (*const choose_)(int size);
  std::vector<HuffmanTable> dc_, ac_;  // by table number
  Component component_[kMostComponents];
  int components_ = 0, blocks_ = 0;  // blocks: of an MCU
  std::array<Place, kMaxBlocks> places_{};
  Lane lane_[2];

  std::span<const uint8_t> scan_;  // from its first byte to the end of the file
  const SegmentedJpeg* segments_ = nullptr;
  ScanPoints* points_ = nullptr;
  int restart_ = 0;                        // MCUs between restarts; 0: none
  std::vector<const uint8_t*> intervals_;  // where the data after each restart begin, so far
  int latest_ = 0;                         // with restarts: the lane that has read further
  int part_ = 0;                  // MCUs of a segment, or between points; 0: only from the start
  int mcus_ = 0, row_count_ = 0;  // MCUs of a row; rows of MCUs
  int known_rows_ = 0;            // that can be read in parts
  Columns columns_;
  int row_ = 0;              // the next one
  bool opened_ = false;      // lane_[0] is in the scan, in order
  bool is_wide_ = false;     // one lane reads alone, by wide entries
  bool is_reduced_ = false;  // some places are dc_alone
  bool clean_ = true;        // the lanes' blocks are 0, except for DC coefficients
  uint8_t* const* const* rows_ = nullptr;
};

}  // namespace saturate
