#include "image/baseline_scan.h"

#include <algorithm>
#include <cstring>

#include "image/segmented_jpeg.h"

namespace saturate {
namespace {

constexpr uint32_t kEndOfBlock = 64;  // this many zeros end any block
constexpr size_t kPadding = 16;       // zeros that refill() may read past the data

// jpeg_natural_order, then a dummy index for values past the end of a block.
constexpr int kNowhere = DCTSIZE2;
constexpr std::array<uint8_t, 2 * DCTSIZE2 + 16> kOrder = [] {
  std::array<uint8_t, 2 * DCTSIZE2 + 16> order{};
  order.fill(kNowhere);
  size_t i = 0;
  for (int diagonal = 0; diagonal < 2 * DCTSIZE - 1; ++diagonal) {
    const int low = std::max(0, diagonal - DCTSIZE + 1), high = std::min(diagonal, DCTSIZE - 1);
    for (int along = low; along <= high; ++along) {
      const int across = diagonal - along;
      // Even diagonals run up, odd ones down.
      const int x = diagonal % 2 == 0 ? along : across, y = diagonal % 2 == 0 ? across : along;
      order[i++] = static_cast<uint8_t>(y * DCTSIZE + x);
    }
  }
  return order;
}();

uint64_t load_big_endian(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return __builtin_bswap64(value);
}

}  // namespace

// A table entry without the code's length.
uint32_t BaselineScan::Table::meaning(int symbol, bool dc) {
  if (dc) return uint32_t(symbol & 15) << 5;
  if (symbol == 0) return kEndOfBlock << 9;
  const uint32_t size = symbol & 15, run = uint32_t(symbol) >> 4;
  if (size == 0 && run != 15) return kEndOfBlock << 9;  // as libjpeg interprets it
  return size << 5 | run << 9;
}

void BaselineScan::Table::build(const JHUFF_TBL& source, bool dc) {
  if (std::equal(bits.begin() + 1, bits.end(), source.bits + 1) &&
      std::equal(huffval.begin(), huffval.end(), source.huffval) && is_dc == dc)
    return;
  std::copy_n(source.bits, bits.size(), bits.begin());
  std::copy_n(source.huffval, huffval.size(), huffval.begin());
  is_dc = dc;
  entry.fill(0);
  int code = 0, index = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    offset[size_t(length)] = index - code;
    for (int i = 0; i < bits[size_t(length)]; ++i, ++code, ++index) {
      const uint32_t what = meaning(huffval[size_t(index)], dc);
      const uint32_t taken = uint32_t(length) + (what >> 5 & 15);
      if (length > kLook) continue;
      const size_t first = size_t(code) << (kLook - length);
      std::fill_n(entry.begin() + ptrdiff_t(first), size_t(1) << (kLook - length),
                  static_cast<uint16_t>(what | taken));
    }
    end[size_t(length)] = code;
  }
}

uint32_t BaselineScan::Table::find_long(uint32_t look) const {
  for (int length = kLook + 1; length <= 16; ++length) {
    const int code = static_cast<int>(look >> (16 - length));
    if (bits[size_t(length)] != 0 && code < end[size_t(length)] &&
        code >= end[size_t(length)] - bits[size_t(length)]) {
      const int symbol = huffval[size_t(code + offset[size_t(length)])];
      return meaning(symbol, is_dc) | uint32_t(length);
    }
  }
  return 0;
}

// Copies data without stuffed zeros, up to the marker that ends it; returns the marker's position,
// or the end of the data.
const uint8_t* BaselineScan::unstuff(std::span<const uint8_t> data) {
  if (data_.size() < data.size() + kPadding) data_.resize(data.size() + kPadding);
  uint8_t* to = data_.data();
  const uint8_t* from = data.data();
  const uint8_t* const end = from + data.size();
  while (true) {
    const auto* mark = static_cast<const uint8_t*>(std::memchr(from, 0xff, size_t(end - from)));
    if (mark == nullptr) mark = end;
    std::memcpy(to, from, size_t(mark - from));
    to += mark - from;
    if (end - mark < 2 || mark[1] != 0) {
      std::memset(to, 0, kPadding);
      bits_ = {data_.data(), to};
      return mark;
    }
    *to++ = 0xff;
    from = mark + 2;
  }
}

bool BaselineScan::start(jpeg_decompress_struct& info, const SegmentedJpeg* segments) {
  info_ = nullptr;
  segments_ = segments;
  row_ = 0;
  const unsigned restart = segments ? unsigned(segments->segment_mcus()) : 0;
  const bool plain = !info.progressive_mode && !info.arith_code &&
                     info.restart_interval == restart && !info.inputctl->has_multiple_scans &&
                     info.unread_marker == 0 && info.comps_in_scan == info.num_components;
  if (!plain) return false;
  if (segments && (info.MCUs_per_row != restart * JDIMENSION(segments->segments_across()) ||
                   info.image_height != JDIMENSION(segments->height())))
    return false;
  for (int c = 0; c < info.comps_in_scan; ++c) {
    const jpeg_component_info& component = *info.cur_comp_info[c];
    const int dc = component.dc_tbl_no, ac = component.ac_tbl_no;
    if (dc > 1 || ac > 1 || component.component_index != c) return false;
    dc_[dc].build(*info.dc_huff_tbl_ptrs[dc], true);
    ac_[ac].build(*info.ac_huff_tbl_ptrs[ac], false);
    last_dc_[c] = 0;
  }
  info_ = &info;
  if (segments) return true;
  const std::span data(info.src->next_input_byte, info.src->bytes_in_buffer);
  const uint8_t* const end = unstuff(data);
  return data.data() + data.size() - end >= 2 && end[1] == JPEG_EOI;
}

bool BaselineScan::enter_segment(int row, int column) {
  const std::span data = segments_->segment(row, column);
  std::fill(std::begin(last_dc_), std::end(last_dc_), 0);
  return unstuff(data) == data.data() + data.size();
}

// Afterwards at least 56 bits are available.
[[gnu::always_inline]] inline void BaselineScan::Bits::refill() {
  next |= load_big_endian(at) >> count;
  const int bytes = (63 - count) >> 3;
  at = std::min(at + bytes, end + kPadding / 2);
  count += bytes * 8;
}

// Reads a code and the value after it. False if there is no such code. REQUIRES: at most one symbol
// read since a refill.
[[gnu::always_inline]] inline bool BaselineScan::read_symbol(Bits& bits, const Table& table,
                                                             Symbol& symbol) {
  uint32_t entry = table.entry[bits.next >> (64 - kLook)];
  if (entry == 0) [[unlikely]] {
    bits.refill();
    entry = table.find_long(static_cast<uint32_t>(bits.next >> 48));
    if (entry == 0) return false;
    entry += entry >> 5 & 15;
  }
  const uint32_t taken = entry & 31, size = entry >> 5 & 15;
  // A value with first bit 0 is negative: then it is 2^size - 1 too large.
  const uint64_t from_value = bits.next << (taken - size);
  const int64_t positive = static_cast<int64_t>(from_value) >> 63;
  symbol.value = static_cast<int>(from_value >> 1 >> (63 - size)) +
                 static_cast<int>(~positive & (1 - (int64_t{1} << size)));
  symbol.zeros = entry >> 9;
  bits.next <<= taken;
  bits.count -= static_cast<int>(taken);
  return true;
}

// Calls take(index in kOrder, value) for each coefficient but the first, which goes to last_dc.
template <class Take>
[[gnu::always_inline]] inline bool BaselineScan::read_block(Bits& bits, const Table& dc,
                                                            const Table& ac, uint32_t& last_dc,
                                                            const Take& take) {
  Symbol symbol;
  bits.refill();
  if (!read_symbol(bits, dc, symbol)) return false;
  last_dc += static_cast<uint32_t>(symbol.value);
  for (uint32_t k = 1; k < DCTSIZE2; ++k) {
    if (!read_symbol(bits, ac, symbol)) return false;
    k += symbol.zeros;
    take(k, symbol.value);
    if (++k >= DCTSIZE2) break;
    bits.refill();
    if (!read_symbol(bits, ac, symbol)) return false;
    k += symbol.zeros;
    take(k, symbol.value);
  }
  return true;
}

// Reads MCUs [begin, end) of a row.
[[gnu::always_inline]] inline bool BaselineScan::read_columns(JDIMENSION begin, JDIMENSION end,
                                                              uint8_t* const* const rows[3],
                                                              bool skip) {
  jpeg_decompress_struct& info = *info_;
  const jpeg_decomp_master& master = *info.master;
  alignas(32) int16_t block[DCTSIZE2 + 16] = {};  // and kNowhere
  Bits bits = bits_;
  for (JDIMENSION column = begin; column < end; ++column) {
    const bool skipped = skip || column < master.first_iMCU_col || column > master.last_iMCU_col;
    for (int c = 0; c < info.comps_in_scan; ++c) {
      jpeg_component_info& component = *info.cur_comp_info[c];
      const Table &dc = dc_[component.dc_tbl_no], &ac = ac_[component.ac_tbl_no];
      const int size = component.DCT_scaled_size;
      const auto store = [&block](uint32_t k, int value) {
        block[kOrder[k]] = static_cast<int16_t>(value);
      };
      for (int i = 0; i < component.MCU_blocks; ++i) {
        if (skipped) {
          if (!read_block(bits, dc, ac, last_dc_[c], [](uint32_t, int) {})) return false;
          continue;
        }
        if (!read_block(bits, dc, ac, last_dc_[c], store)) return false;
        block[0] = static_cast<int16_t>(last_dc_[c]);
        const int x = i % component.MCU_width, y = i / component.MCU_width;
        const JDIMENSION to =
            (column - master.first_iMCU_col) * JDIMENSION(component.MCU_sample_width) +
            JDIMENSION(x * size);
        info.idct->inverse_DCT[c](&info, &component, block,
                                  const_cast<JSAMPARRAY>(rows[c] + y * size), to);
        for (int k = 0; k < DCTSIZE2; k += 8) std::memset(block + k, 0, 16);
      }
    }
  }
  bits_ = bits;
  // No bits may come from past the end.
  return bits.at - bits.count / 8 <= bits.end;
}

[[gnu::always_inline]] inline bool BaselineScan::read_band_inline(uint8_t* const* const rows[3],
                                                                  bool skip) {
  const jpeg_decomp_master& master = *info_->master;
  JDIMENSION run = info_->MCUs_per_row, end = run;
  JDIMENSION first = 0;
  if (segments_ != nullptr) {
    if (skip) return ++row_, true;
    run = info_->restart_interval;
    first = master.first_iMCU_col / run;
    end = master.last_iMCU_col + 1;
  }
  for (JDIMENSION i = first; i * run < end; ++i) {
    if (segments_ != nullptr && !enter_segment(row_, int(i))) return false;
    if (!read_columns(i * run, std::min(end, (i + 1) * run), rows, skip)) return false;
  }
  ++row_;
  return true;
}

[[gnu::target("bmi2")]] bool BaselineScan::read_band_bmi2(uint8_t* const* const rows[3],
                                                          bool skip) {
  return read_band_inline(rows, skip);
}

bool BaselineScan::read_band(uint8_t* const* const rows[3], bool skip) {
  static const bool has_bmi2 = __builtin_cpu_supports("bmi2") != 0;
  return has_bmi2 ? read_band_bmi2(rows, skip) : read_band_inline(rows, skip);
}

}  // namespace saturate
