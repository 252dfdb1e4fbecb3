#include "image/jpeg_packer.h"

#include <algorithm>
#include <cstring>

namespace saturate {
namespace {

// Sets three predictors; false if they do not fit.
bool copy_predictors(const uint32_t (&from)[3], int16_t (&to)[3]) {
  for (int c = 0; c < 3; ++c) {
    to[c] = int16_t(from[c]);
    if (uint32_t(int32_t{to[c]}) != from[c]) return false;
  }
  return true;
}

}  // namespace

size_t JpegPacker::plan(const PackSource& source) {
  from_ = &source;
  packed_ = {};
  used_ = sizeof packed_;
  axes_.clear();
  parts_.clear();
  pieces_.clear();
  if (!describe_parts() || !describe_components()) return 0;
  put_axes();
  const bool done = put_parts() && used_ <= UINT32_MAX &&
                    make_plan(packed_, uint32_t(used_), source.size, plan_) && has_rows();
  return done ? used_ : 0;
}

uint32_t JpegPacker::reserve(size_t bytes) {
  const size_t at = (used_ + 3) / 4 * 4;
  used_ = at + bytes;
  return uint32_t(at);
}

// Which parts of each row there are, and which of their MCUs are needed.
bool JpegPacker::describe_parts() {
  const ScanHeader& header = from_->header;
  const int mcu_width = DCTSIZE * header.across;
  const int mcus = divide_up(header.width, mcu_width);
  const int rows = divide_up(header.height, DCTSIZE * header.down), restart = header.restart;
  int part = 0;
  if (from_->segments) {
    part = from_->segments->segment_mcus();
    if (restart != part || mcus != part * from_->segments->segments_across() ||
        header.height != from_->segments->height())
      return false;
  } else {
    const ScanPoints& points = from_->points;
    part = BaselineScan::point_mcus(mcu_width);
    const bool has_restarts = restart > 0 && restart < int64_t{mcus} * rows;
    if (has_restarts || points.every != part || points.rows != rows ||
        points.across != divide_up(mcus, part) || points.known_rows() < from_->planes.end_band)
      return false;
  }
  const auto [first, end] = from_->planes.columns;
  first_part_ = first / part;
  const int end_part = divide_up(end, part), begin = first_part_ * part;
  packed_.checks_ends = from_->segments ? 0 : 1;
  packed_.rows = uint16_t(from_->planes.end_band - from_->planes.first_band);
  packed_.parts_across = uint16_t(end_part - first_part_);
  packed_.part_mcus = uint16_t(part);
  packed_.first_mcu = uint16_t(first - begin);
  packed_.end_mcu = uint16_t(end - begin);
  // The next point is checked.
  packed_.row_mcus =
      from_->segments ? packed_.end_mcu : uint16_t(std::min(end_part * part, mcus) - begin);
  return true;
}

bool JpegPacker::put_codes(int table) {
  packed_.codes[table] = from_->header.codes[table];
  CodeLimits limits;
  return limit_codes(packed_.codes[table], table < 2, limits);
}

bool JpegPacker::describe_components() {
  const ScanHeader& header = from_->header;
  packed_.magic = kPackedMagic;
  packed_.components = uint8_t(header.components);
  packed_.across = uint8_t(header.across);
  packed_.down = uint8_t(header.down);
  packed_.turn = from_->turn;
  for (int c = 0; c < header.components; ++c) {
    packed_.size[c] = uint8_t(from_->planes.plane[c].across.num / (c == 0 ? header.across : 1));
    packed_.dc_table[c] = header.dc_table[c];
    packed_.ac_table[c] = header.ac_table[c];
    std::copy_n(header.quant[c], DCTSIZE2, packed_.quant[c]);
    if (!put_codes(header.dc_table[c]) || !put_codes(2 + header.ac_table[c])) return false;
  }
  return true;
}

PackedAxis JpegPacker::put_axis(const FastAxis& axis, int origin) {
  const size_t values = axis.first.size() + axis.weight.size();
  axes_.push_back({&axis, origin, reserve(values * sizeof(uint16_t))});
  return {axes_.back().at, uint16_t(axis.taps), uint16_t(axis.low - origin),
          uint16_t(axis.high - origin), 0};
}

void JpegPacker::put_axes() {
  const int count = from_->across[1] == from_->across[0] ? 1 : 2;
  for (int i = 0; i < count; ++i) {
    const JpegPlanes::Plane& plane = from_->planes.plane[i];
    packed_.across_axis[i] = put_axis(*from_->across[i], plane.first_column);
    packed_.down_axis[i] = put_axis(*from_->down[i], from_->planes.first_band * plane.band_rows());
  }
  if (count == 2) return;
  packed_.across_axis[1] = packed_.across_axis[0];
  packed_.down_axis[1] = packed_.down_axis[0];
}

bool JpegPacker::put_parts() {
  packed_.parts_at = reserve(size_t{packed_.rows} * packed_.parts_across * sizeof(PackedPart));
  packed_.data_at = reserve(0);
  for (int row = from_->planes.first_band; row < from_->planes.end_band; ++row) {
    if (from_->segments)
      put_segments(row);
    else if (!put_between_points(row))
      return false;
  }
  packed_.data_bytes = uint32_t(used_ - packed_.data_at);
  used_ += kPackedSlack;
  return true;
}

void JpegPacker::append(std::span<const uint8_t> data) {
  pieces_.push_back(data);
  used_ += data.size();
}

// The segments of a row are copied together, with the markers between them.
void JpegPacker::put_segments(int row) {
  const uint8_t* const begin = from_->segments->segment(row, first_part_).data();
  const auto at = uint32_t(used_ - packed_.data_at);
  const uint8_t* end = begin;
  for (int i = 0; i < packed_.parts_across; ++i) {
    const std::span segment = from_->segments->segment(row, first_part_ + i);
    parts_.push_back(
        {at + uint32_t(segment.data() - begin), uint16_t(segment.size()), 0, 0, {}, {}});
    end = segment.data() + segment.size();
  }
  append({begin, end});
}

// Where a part between two points is. False if the points contradict the file.
bool JpegPacker::find_bits(int row, int part, BitRange& range) const {
  const auto& point = from_->points.point;
  const size_t i = size_t(row) * size_t(from_->points.across) + size_t(part);
  const std::span<const uint8_t> data = from_->header.scan;
  if (i >= point.size()) return false;
  range = {point[i].bit, 0, i + 1 == point.size()};
  if (!range.to_padding) {
    range.end = point[i + 1].bit;
    return range.begin <= range.end && range.end / 8 < data.size();
  }
  for (size_t at = range.begin / 8; at + 1 < data.size(); ++at) {
    if (data[at] != 0xff || data[at + 1] == 0) continue;
    range.end = at * 8;
    return range.begin <= range.end;
  }
  return false;
}

bool JpegPacker::put_between_points(int row) {
  const auto at = uint32_t(used_ - packed_.data_at);
  const size_t index = size_t(row) * size_t(from_->points.across) + size_t(first_part_);
  const auto bytes_to = [](const BitRange& bits) { return (bits.end + 7) / 8; };
  BitRange bits{};
  uint64_t first = 0;
  for (int i = 0; i < packed_.parts_across; ++i) {
    if (!find_bits(row, first_part_ + i, bits)) return false;
    const uint64_t begin = bits.begin / 8, bytes = bytes_to(bits) - begin;
    if (i == 0) first = begin;
    if (bytes > UINT16_MAX) return false;
    PackedPart part{at + uint32_t(begin - first),
                    uint16_t(bytes),
                    uint8_t(bits.begin % 8),
                    bits.to_padding ? kPadding : uint8_t((8 - bits.end % 8) % 8),
                    {},
                    {}};
    const ScanPoint* const point = from_->points.point.data() + index + i;
    if (!copy_predictors(point->dc, part.dc) ||
        (!bits.to_padding && !copy_predictors(point[1].dc, part.end_dc)))
      return false;
    parts_.push_back(part);
  }
  append(from_->header.scan.subspan(first, size_t(bytes_to(bits) - first)));
  return true;
}

// Whether each output row's samples fit in the scratch memory.
bool JpegPacker::has_rows() const {
  if (plan_.ring_bands == packed_.rows) return true;
  for (size_t y = 0; y < size_t(from_->size.height); ++y) {
    int first = from_->planes.end_band, end = 0;
    for (int c = 0; c < plan_.planes; ++c) {
      const FastAxis& down = *from_->down[plan_.plane[c].axis];
      const int rows = plan_.plane[c].band_rows;
      first = std::min(first, down.first[y] / rows);
      end = std::max(end, (down.first[y] + down.taps - 1) / rows + 1);
    }
    if (end - first > plan_.ring_bands) return false;
  }
  return true;
}

void JpegPacker::write(std::byte* out) const {
  const auto put = [&](uint32_t at, const void* from, size_t bytes) {
    std::memcpy(out + at, from, bytes);
  };
  put(0, &packed_, sizeof packed_);
  for (const Axis& from : axes_) {
    auto* const first = reinterpret_cast<uint16_t*>(out + from.at);
    const std::vector<int>& places = from.axis->first;
    for (size_t i = 0; i < places.size(); ++i) first[i] = uint16_t(places[i] - from.origin);
    const auto weights = uint32_t(places.size() * sizeof(uint16_t));
    put(from.at + weights, from.axis->weight.data(), from.axis->weight.size() * sizeof(uint16_t));
  }
  put(packed_.parts_at, parts_.data(), parts_.size() * sizeof(PackedPart));
  uint32_t at = packed_.data_at;
  for (const auto& piece : pieces_) {
    put(at, piece.data(), piece.size());
    at += uint32_t(piece.size());
  }
  std::memset(out + at, 0, kPackedSlack);
}

}  // namespace saturate
