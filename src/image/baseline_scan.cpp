// Where the parts of a scan are: rows, segments, restarts and points. src/image/scan_lanes.cpp
// reads their blocks.
#include "image/baseline_scan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "image/segmented_jpeg.h"

namespace saturate {
namespace {

constexpr int kTables = 2;        // of each kind, in baseline JPEGs
constexpr int kPointPixels = 64;  // between points of a row

bool is_marker(const uint8_t* at, const uint8_t* end, int code) {
  while (end - at > 2 && at[0] == 0xff && at[1] == 0xff) ++at;  // fill bytes
  return end - at >= 2 && at[0] == 0xff && at[1] == code;
}

}  // namespace

BaselineScan::BaselineScan(InverseDct (*choose)(int size)) : choose_(choose) {
  for (int i = 0; i < kTables; ++i) {
    dc_.emplace_back(kDcLook, true);
    ac_.emplace_back(kAcLook, false);
  }
}

bool BaselineScan::supports(jpeg_decompress_struct& info) {
  if (info.progressive_mode || info.arith_code || jpeg_has_multiple_scans(&info) ||
      info.unread_marker != 0 || info.num_components > kMostComponents ||
      info.comps_in_scan != info.num_components)
    return false;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& source = info.comp_info[c];
    const int dc = source.dc_tbl_no, ac = source.ac_tbl_no;
    // libjpeg has not yet checked these numbers.
    const bool in_range = dc < kTables && ac < kTables && source.quant_tbl_no < NUM_QUANT_TBLS;
    if (info.cur_comp_info[c] != &source || !in_range) return false;
    if (!info.dc_huff_tbl_ptrs[dc] || !info.ac_huff_tbl_ptrs[ac] ||
        !info.quant_tbl_ptrs[source.quant_tbl_no])
      return false;
  }
  return true;
}

bool BaselineScan::has_restarts(const jpeg_decompress_struct& info) {
  const bool single = info.num_components == 1;
  const auto count = [&](JDIMENSION pixels, int factor) {
    return int64_t{divide_up(int(pixels), DCTSIZE * (single ? 1 : factor))};
  };
  const int64_t mcus = count(info.image_width, info.max_h_samp_factor) *
                       count(info.image_height, info.max_v_samp_factor);
  return info.restart_interval > 0 && info.restart_interval < mcus;
}

int BaselineScan::point_mcus(int mcu_width) {
  return kPointPixels / mcu_width;
}

// REQUIRES: supports(info).
bool BaselineScan::read_tables(const jpeg_decompress_struct& info) {
  components_ = info.num_components;
  blocks_ = 0;
  for (int c = 0; c < components_; ++c) {
    const jpeg_component_info& source = info.comp_info[c];
    const int dc = source.dc_tbl_no, ac = source.ac_tbl_no;
    const JQUANT_TBL* quant = info.quant_tbl_ptrs[source.quant_tbl_no];
    if (!dc_[size_t(dc)].build(*info.dc_huff_tbl_ptrs[dc], is_wide_) ||
        !ac_[size_t(ac)].build(*info.ac_huff_tbl_ptrs[ac], is_wide_))
      return false;
    Component& component = component_[c];
    component.dc = &dc_[size_t(dc)];
    component.ac = &ac_[size_t(ac)];
    // The blocks of a scan of one component are not interleaved, whatever its factors are.
    component.across = components_ == 1 ? 1 : source.h_samp_factor;
    component.down = components_ == 1 ? 1 : source.v_samp_factor;
    component.size = scaled_block_size(source);
    component.transform = choose_(component.size);
    std::copy_n(quant->quantval, DCTSIZE2, component.quant);
    blocks_ += component.across * component.down;
  }
  return blocks_ <= D_MAX_BLOCKS_IN_MCU;
}

// Where the blocks of a chunk are stored, in the order in which they are coded.
void BaselineScan::plan_chunk() {
  uint32_t base = 0;
  is_reduced_ = false;
  for (int c = 0; c < components_; ++c) {
    Component& component = component_[c];
    is_reduced_ = is_reduced_ || component.size == 1;
    component.base = base;
    component.row_values = uint32_t(kChunk * component.across / kGroupBlocks * kGroupValues);
    base += component.row_values * uint32_t(component.down);
  }
  size_t i = 0;
  for (int mcu = 0; mcu < kChunk; ++mcu) {
    for (int c = 0; c < components_; ++c) {
      const Component& component = component_[c];
      for (int y = 0; y < component.down; ++y) {
        for (int x = 0; x < component.across; ++x) {
          const int block = mcu * component.across + x;
          places_[i++] = {
              component.dc, component.ac,
              component.base + uint32_t(y) * component.row_values +
                  uint32_t(block / kGroupBlocks * kGroupValues + block % kGroupBlocks * DCTSIZE),
              uint8_t(c), component.size == 1};
        }
      }
    }
  }
}

bool BaselineScan::start(jpeg_decompress_struct& info, Columns columns,
                         const SegmentedJpeg* segments, ScanPoints* points) {
  // Coefficients that were not transformed must not be added to another image.
  if (!std::exchange(clean_, true))
    for (Lane& lane : lane_) lane.blocks.fill(0);
  segments_ = segments;
  points_ = nullptr;
  columns_ = columns;
  row_ = known_rows_ = part_ = 0;
  opened_ = false;
  restart_ = has_restarts(info) ? int(info.restart_interval) : 0;
  if (info.num_components > int(std::size(ScanPoint().dc))) points = nullptr;
  is_wide_ = !segments && restart_ == 0 && !(points && points->known_rows() > 0);
  if (!supports(info) || !read_tables(info)) return false;
  const bool single = components_ == 1;
  const int mcu_width = DCTSIZE * (single ? 1 : info.max_h_samp_factor);
  mcus_ = divide_up(int(info.image_width), mcu_width);
  row_count_ = divide_up(int(info.image_height), DCTSIZE * (single ? 1 : info.max_v_samp_factor));
  scan_ = {info.src->next_input_byte, info.src->bytes_in_buffer};
  plan_chunk();
  if (segments) {
    part_ = segments->segment_mcus();
    known_rows_ = row_count_;
    return restart_ == part_ && mcus_ == part_ * segments->segments_across() &&
           int(info.image_height) == segments->height();
  }
  if (restart_ > 0) {
    intervals_.assign(1, scan_.data());
    for (Lane& lane : lane_) {
      lane.bits = {};
      lane.scan_mcu = 0;
    }
    return true;
  }
  if (points) {
    const int every = point_mcus(mcu_width);
    if (points->point.empty()) *points = {every, row_count_, divide_up(mcus_, every), {}};
    if (points->every != every || points->rows != row_count_ ||
        points->across != divide_up(mcus_, every))
      return false;
    points_ = points;
    part_ = points->every;
    known_rows_ = points->known_rows();
    if (known_rows_ > 0) return true;  // the end was found when they were
  }
  return open_scan();
}

// Copies data without stuffed zeros, up to the marker that ends it or `end`.
void BaselineScan::unstuff(Lane& lane, const uint8_t* from, const uint8_t* end) {
  const size_t most = size_t(end - from) + kBitPadding;
  if (lane.data.size() < most) lane.data.resize(most);
  lane.source = from;
  lane.stuffed.clear();
  lane.counted = 0;
  uint8_t* to = lane.data.data();
  while (true) {
    const auto* mark = static_cast<const uint8_t*>(std::memchr(from, 0xff, size_t(end - from)));
    if (mark == nullptr) mark = end;
    std::memcpy(to, from, size_t(mark - from));
    to += mark - from;
    if (end - mark < 2 || mark[1] != 0) {
      std::memset(to, 0, kBitPadding);
      lane.source_end = mark;
      lane.bits = {lane.data.data(), to};
      return;
    }
    if (points_) lane.stuffed.push_back(uint32_t(to - lane.data.data()));
    *to++ = 0xff;
    from = mark + 2;
  }
}

// Goes to the first row that is not known in parts.
bool BaselineScan::open_scan() {
  Lane& lane = lane_[0];
  opened_ = true;
  lane.expected = UINT64_MAX;
  if (known_rows_ > 0) return enter_after_known_rows(lane);
  const uint8_t* const end = scan_.data() + scan_.size();
  unstuff(lane, scan_.data(), end);
  std::fill(std::begin(lane.dc), std::end(lane.dc), 0);
  return is_marker(lane.source_end, end, JPEG_EOI);
}

// Their last point must be where the part before it ends: no later part would show that it is
// wrong.
bool BaselineScan::enter_after_known_rows(Lane& lane) {
  const size_t point = size_t(known_rows_) * size_t(points_->across);
  lane.mcu = (points_->across - 1) * part_;
  --row_;  // skip_to() notes no points of a known row
  const bool arrives = enter_point(lane, point - 1, point) && skip_to(lane, mcus_) &&
                       !lane.bits.overrun() && arrives_at(lane, point);
  ++row_;
  return arrives && enter_point(lane, point, SIZE_MAX);
}

// Does what is due before the lane's next MCU.
bool BaselineScan::enter_boundary(Lane& lane) {
  if (segments_) return lane.mcu % part_ != 0 || enter_segment(lane);
  if (restart_ > 0) {
    const int64_t before = int64_t{row_} * mcus_ + lane.mcu;
    return before % restart_ != 0 || enter_interval(lane, before / restart_);
  }
  if (points_ && row_ >= known_rows_ && lane.mcu % part_ == 0)
    note_point(lane, row_, lane.mcu / part_);
  return true;
}

bool BaselineScan::enter_segment(Lane& lane) {
  const std::span data = segments_->segment(row_, lane.mcu / part_);
  const bool whole = lane.bits.at == nullptr || !lane.bits.overrun();
  unstuff(lane, data.data(), data.data() + data.size());
  std::fill(std::begin(lane.dc), std::end(lane.dc), 0);
  return whole && lane.source_end == data.data() + data.size();
}

// `limit`: the point that the lane must arrive at; none if there are not so many.
bool BaselineScan::enter_point(Lane& lane, size_t index, size_t limit) {
  const auto& points = points_->point;
  if (index >= points.size()) return false;
  const ScanPoint& point = points[index];
  const uint64_t first = point.bit / 8, bytes = scan_.size();
  const uint64_t end = limit < points.size() ? points[limit].bit / 8 : bytes;
  if (first >= bytes || end > bytes || end < first) return false;
  unstuff(lane, scan_.data() + first, scan_.data() + end);
  lane.expected = UINT64_MAX;
  if (limit < points.size()) {
    if (end == bytes || lane.source_end != scan_.data() + end) return false;
    // The part may end inside this byte.
    uint8_t* const last = lane.data.data() + (lane.bits.end - lane.bits.at);
    lane.expected = uint64_t(lane.bits.end - lane.bits.at) * 8 + points[limit].bit % 8;
    *last = scan_[end];
    lane.data.resize(std::max(lane.data.size(), size_t(last - lane.data.data()) + 1 + kBitPadding));
    lane.bits = {lane.data.data(), lane.data.data() + (lane.expected + 7) / 8};
    std::memset(const_cast<uint8_t*>(lane.bits.end), 0, kBitPadding);
  }
  lane.bits.refill_safe();
  lane.bits.skip(uint32_t(point.bit % 8));
  std::copy_n(point.dc, 3, lane.dc);
  return true;
}

// Whether the lane is where its part ends.
bool BaselineScan::arrives_at(const Lane& lane, size_t index) const {
  return lane.expected == UINT64_MAX
             ? ends_scan(lane)
             : (lane.bits.since(lane.data.data()) == lane.expected &&
                std::equal(lane.dc, lane.dc + components_, points_->point[index].dc));
}

// Whether only padding of less than a byte is left before the marker.
bool BaselineScan::ends_scan(const Lane& lane) const {
  const uint64_t read = lane.bits.since(lane.data.data());
  const uint64_t all = uint64_t(lane.bits.end - lane.data.data()) * 8;
  return read <= all && all - read < 8;
}

void BaselineScan::note_point(Lane& lane, int row, int part) {
  if (points_->point.size() != size_t(row) * size_t(points_->across) + size_t(part)) return;
  const uint64_t bits = lane.bits.since(lane.data.data());
  while (lane.counted < lane.stuffed.size() && lane.stuffed[lane.counted] < bits / 8)
    ++lane.counted;
  ScanPoint point{bits + 8 * (uint64_t(lane.source - scan_.data()) + lane.counted), {}};
  std::copy_n(lane.dc, components_, point.dc);
  points_->point.push_back(point);
}

// The MCU at which the lane stops next.
int BaselineScan::next_stop(const Lane& lane) const {
  const auto after = [&](int64_t before, int every) {
    return lane.mcu + every - int(before % every);
  };
  int stop = lane.end;
  if (restart_ > 0)
    stop = std::min(stop, after(segments_ ? lane.mcu : int64_t{row_} * mcus_ + lane.mcu, restart_));
  if (points_ && row_ >= known_rows_) stop = std::min(stop, after(lane.mcu, part_));
  return stop;
}

bool BaselineScan::read_sequential(bool skip) {
  Lane& lane = lane_[0];
  if (!opened_ && !open_scan()) return false;
  lane.mcu = 0;
  if (!skip) {
    if (!skip_to(lane, columns_.first)) return false;
    lane.end = columns_.end;
    if (!read_lanes(lane, nullptr)) return false;
  }
  if (!skip_to(lane, mcus_)) return false;
  if (points_ && row_ + 1 < row_count_) note_point(lane, row_ + 1, 0);
  // Other bytes at the end: the last row's points could not be checked.
  if (points_ && row_ + 1 == row_count_ && !ends_scan(lane))
    points_->point.resize(
        std::min(points_->point.size(), size_t(row_) * size_t(points_->across) + 1));
  return !lane.bits.overrun();
}

// The first part of the second lane, so that both have the same number of bytes to read;
// `first` if there is one part.
int BaselineScan::split(int first, int last) const {
  const auto position = [&](int part) -> int64_t {
    if (!segments_) {
      const size_t index = size_t(row_) * size_t(points_->across) + size_t(part);
      return index < points_->point.size() ? int64_t(points_->point[index].bit / 8)
                                           : int64_t(scan_.size());
    }
    if (part <= last) return segments_->segment(row_, part).data() - scan_.data();
    const std::span data = segments_->segment(row_, last);
    return data.data() + data.size() - scan_.data();
  };
  const int64_t used = columns_.end - int64_t{last} * part_;  // MCUs of the last part
  const int64_t end = position(last) + (position(last + 1) - position(last)) * used / part_;
  const int64_t middle = (position(first) + end) / 2;
  int best = first;
  for (int part = first + 1; part <= last; ++part)
    if (best == first || std::abs(position(part) - middle) < std::abs(position(best) - middle))
      best = part;
  return best;
}

// Goes to the column `from` of a row of parts, to read up to `end`.
bool BaselineScan::open_part(Lane& lane, int from, int end) {
  const int part = from / part_, limit = divide_up(end, part_);
  lane.mcu = part * part_;
  lane.bits = {};
  const size_t row = segments_ ? 0 : size_t(row_) * size_t(points_->across);
  if (!segments_ && !enter_point(lane, row + size_t(part), row + size_t(limit))) return false;
  if (!skip_to(lane, from)) return false;
  lane.end = end;
  return true;
}

bool BaselineScan::read_parts() {
  const int middle = split(columns_.first / part_, (columns_.end - 1) / part_) * part_;
  const bool two = middle > columns_.first;
  Lane &a = lane_[0], &b = lane_[1];
  if (!open_part(a, columns_.first, two ? middle : columns_.end)) return false;
  if (two && !open_part(b, middle, columns_.end)) return false;
  if (!read_lanes(a, two ? &b : nullptr)) return false;
  for (int i = 0; i < (two ? 2 : 1); ++i) {
    Lane& lane = lane_[i];
    if (lane.bits.overrun()) return false;
    if (segments_) continue;
    // Points that belong to another scan do not meet. A lane alone reads on to the next point for
    // this; of two, the first has arrived where the second began.
    const int part = divide_up(lane.end, part_), next = std::min(part * part_, mcus_);
    if (i == 1 && next > lane.end) continue;
    if (!skip_to(lane, next) || lane.bits.overrun()) return false;
    if (!arrives_at(lane, size_t(row_) * size_t(points_->across) + size_t(part))) return false;
  }
  return true;
}

bool BaselineScan::read_band(uint8_t* const* const* rows, bool skip) {
  rows_ = rows;
  clean_ = false;  // until all is transformed, also if this throws
  if (row_ < known_rows_)
    clean_ = skip || read_parts();
  else if (restart_ > 0)
    clean_ = skip || read_intervals();
  else
    clean_ = read_sequential(skip);
  ++row_;
  return clean_;
}

}  // namespace saturate
