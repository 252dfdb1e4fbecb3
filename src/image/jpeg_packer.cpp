#include "image/jpeg_packer.h"

#include <algorithm>
#include <cstring>

#include "image/effect_passes.h"
#include "image/packed_layout.h"

namespace saturate {
namespace {

// Bits from the first byte of the scan's data.
struct BitRange {
  uint64_t begin, end;
  bool to_padding;  // the scan ends in the last byte
};

class JpegPacker {
 public:
  JpegPacker(const PackSource& source, std::span<std::byte> out)
      : from_(source), out_(out.first(std::min(out.size(), slot_bytes(source.size)))) {}

  size_t pack() {
    // Slots after one of another size would not be aligned.
    if (slot_bytes(from_.size) % 4 != 0 || !is_multiple(out_.data(), 4) ||
        !reserve(sizeof(PackedJpeg)))
      return 0;
    const bool done = describe_parts() && describe_components() && put_axes() && put_parts() &&
                      make_plan(packed_, from_.size, plan_) && has_rows();
    if (!done) return 0;
    std::memcpy(out_.data(), &packed_, sizeof packed_);
    return used_;
  }

 private:
  // Whether there is room for that many more bytes, which then begin at the next multiple of 4.
  bool reserve(size_t bytes) {
    at_ = (used_ + 3) / 4 * 4;
    if (at_ > out_.size() || bytes > out_.size() - at_) return false;
    used_ = at_ + bytes;
    return true;
  }

  bool describe_parts();
  bool describe_components();
  bool put_codes(int table, const JHUFF_TBL& codes);
  bool put_axis(const FastAxis& axis, int origin, PackedAxis& to);
  bool put_axes();
  bool put_parts();
  bool put_segments(int row, PackedPart* parts);
  bool put_between_points(int row, PackedPart* parts);
  bool find_bits(int row, int part, BitRange& range) const;
  bool put_data(const uint8_t* data, size_t bytes);
  bool has_rows() const;

  // The scan's data, from its first byte to the end of the file.
  std::span<const uint8_t> scan() const {
    return {from_.info.src->next_input_byte, from_.info.src->bytes_in_buffer};
  }

  const PackSource& from_;
  const std::span<std::byte> out_;
  size_t at_ = 0, used_ = 0;
  int first_part_ = 0;
  PackedJpeg packed_{};
  UnpackPlan plan_{};
};

// Which parts of each row there are, and which of their MCUs are needed.
bool JpegPacker::describe_parts() {
  jpeg_decompress_struct& info = from_.info;
  if (!BaselineScan::supports(info)) return false;
  const bool single = info.num_components == 1;
  const int mcu_width = DCTSIZE * (single ? 1 : info.max_h_samp_factor);
  const int mcus = divide_up(int(info.image_width), mcu_width);
  const int rows =
      divide_up(int(info.image_height), DCTSIZE * (single ? 1 : info.max_v_samp_factor));
  const auto restart = int(info.restart_interval);
  int part = 0;
  if (from_.segments) {
    part = from_.segments->segment_mcus();
    if (restart != part || mcus != part * from_.segments->segments_across() ||
        int(info.image_height) != from_.segments->height())
      return false;
  } else {
    const ScanPoints& points = from_.points;
    part = BaselineScan::point_mcus(mcu_width);
    if (restart != 0 || points.every != part || points.rows != rows ||
        points.across != divide_up(mcus, part) || points.known_rows() < from_.planes.end_band)
      return false;
  }
  const auto [first, end] = from_.columns;
  first_part_ = first / part;
  const int end_part = divide_up(end, part), begin = first_part_ * part;
  packed_.checks_ends = from_.segments ? 0 : 1;
  packed_.rows = uint16_t(from_.planes.end_band - from_.planes.first_band);
  packed_.parts_across = uint16_t(end_part - first_part_);
  packed_.part_mcus = uint16_t(part);
  packed_.first_mcu = uint16_t(first - begin);
  packed_.end_mcu = uint16_t(end - begin);
  // The next point is checked.
  packed_.row_mcus =
      from_.segments ? packed_.end_mcu : uint16_t(std::min(end_part * part, mcus) - begin);
  return true;
}

bool JpegPacker::put_codes(int table, const JHUFF_TBL& codes) {
  PackedCodes& to = packed_.codes[table];
  std::copy_n(codes.bits + 1, 16, to.bits);
  std::copy_n(codes.huffval, 256, to.huffval);
  CodeLimits limits;
  return limit_codes(to, table < 2, limits);
}

bool JpegPacker::describe_components() {
  const jpeg_decompress_struct& info = from_.info;
  const jpeg_component_info& luma = info.comp_info[0];
  const bool single = info.num_components == 1;
  packed_.magic = kPackedMagic;
  packed_.components = uint8_t(info.num_components);
  packed_.across = uint8_t(single ? 1 : luma.h_samp_factor);
  packed_.down = uint8_t(single ? 1 : luma.v_samp_factor);
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& component = info.comp_info[c];
    if (c > 0 && (component.h_samp_factor != 1 || component.v_samp_factor != 1)) return false;
    packed_.size[c] = uint8_t(scaled_block_size(component));
    packed_.dc_table[c] = uint8_t(component.dc_tbl_no);
    packed_.ac_table[c] = uint8_t(component.ac_tbl_no);
    std::copy_n(info.quant_tbl_ptrs[component.quant_tbl_no]->quantval, DCTSIZE2, packed_.quant[c]);
    if (!put_codes(component.dc_tbl_no, *info.dc_huff_tbl_ptrs[component.dc_tbl_no]) ||
        !put_codes(2 + component.ac_tbl_no, *info.ac_huff_tbl_ptrs[component.ac_tbl_no]))
      return false;
  }
  return true;
}

// `origin`: the first sample that is decoded.
bool JpegPacker::put_axis(const FastAxis& axis, int origin, PackedAxis& to) {
  const size_t weights = axis.weight.size() * sizeof(uint16_t);
  if (!reserve(axis.first.size() * sizeof(uint16_t) + weights)) return false;
  to = {uint32_t(at_), uint16_t(axis.taps), uint16_t(axis.low - origin),
        uint16_t(axis.high - origin), 0};
  auto* const first = reinterpret_cast<std::byte*>(out_.data() + at_);
  for (size_t i = 0; i < axis.first.size(); ++i) {
    const auto place = uint16_t(axis.first[i] - origin);
    std::memcpy(first + i * sizeof place, &place, sizeof place);
  }
  std::memcpy(first + axis.first.size() * sizeof(uint16_t), axis.weight.data(), weights);
  return true;
}

bool JpegPacker::put_axes() {
  const int count = from_.across[1] == from_.across[0] ? 1 : 2;
  for (int i = 0; i < count; ++i) {
    const JpegPlanes::Plane& plane = from_.planes.plane[i];
    if (!put_axis(*from_.across[i], plane.first_column, packed_.across_axis[i]) ||
        !put_axis(*from_.down[i], from_.planes.first_band * plane.band_rows(),
                  packed_.down_axis[i]))
      return false;
  }
  if (count == 1) {
    packed_.across_axis[1] = packed_.across_axis[0];
    packed_.down_axis[1] = packed_.down_axis[0];
  }
  return true;
}

bool JpegPacker::put_parts() {
  const size_t across = packed_.parts_across;
  if (!reserve(packed_.rows * across * sizeof(PackedPart))) return false;
  packed_.parts_at = uint32_t(at_);
  auto* parts = reinterpret_cast<PackedPart*>(out_.data() + at_);
  if (!reserve(0)) return false;
  packed_.data_at = uint32_t(at_);
  for (int row = from_.planes.first_band; row < from_.planes.end_band; ++row, parts += across)
    if (!(from_.segments ? put_segments(row, parts) : put_between_points(row, parts))) return false;
  packed_.data_bytes = uint32_t(used_ - packed_.data_at);
  if (out_.size() - used_ < kPackedSlack) return false;
  std::memset(out_.data() + used_, 0, kPackedSlack);
  used_ += kPackedSlack;
  return true;
}

// Appends without alignment.
bool JpegPacker::put_data(const uint8_t* data, size_t bytes) {
  if (bytes > out_.size() - used_) return false;
  std::memcpy(out_.data() + used_, data, bytes);
  used_ += bytes;
  return true;
}

// The segments of a row are copied together, with the markers between them.
bool JpegPacker::put_segments(int row, PackedPart* parts) {
  const uint8_t* const begin = from_.segments->segment(row, first_part_).data();
  const auto at = uint32_t(used_ - packed_.data_at);
  const uint8_t* end = begin;
  for (int i = 0; i < packed_.parts_across; ++i) {
    const std::span segment = from_.segments->segment(row, first_part_ + i);
    const PackedPart part{
        at + uint32_t(segment.data() - begin), uint16_t(segment.size()), 0, 0, {}, {}};
    std::memcpy(parts + i, &part, sizeof part);
    end = segment.data() + segment.size();
  }
  return put_data(begin, size_t(end - begin));
}

// Where a part between two points is. False if the points contradict the file.
bool JpegPacker::find_bits(int row, int part, BitRange& range) const {
  const auto& point = from_.points.point;
  const size_t i = size_t(row) * size_t(from_.points.across) + size_t(part);
  const std::span<const uint8_t> data = scan();
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

// Sets three predictors; false if they do not fit.
bool copy_predictors(const uint32_t (&from)[3], int16_t (&to)[3]) {
  for (int c = 0; c < 3; ++c) {
    to[c] = int16_t(from[c]);
    if (uint32_t(int32_t{to[c]}) != from[c]) return false;
  }
  return true;
}

bool JpegPacker::put_between_points(int row, PackedPart* parts) {
  const auto at = uint32_t(used_ - packed_.data_at);
  const size_t index = size_t(row) * size_t(from_.points.across) + size_t(first_part_);
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
    const ScanPoint* const point = from_.points.point.data() + index + i;
    if (!copy_predictors(point->dc, part.dc) ||
        (!bits.to_padding && !copy_predictors(point[1].dc, part.end_dc)))
      return false;
    std::memcpy(parts + i, &part, sizeof part);
  }
  return put_data(scan().data() + first, size_t(bytes_to(bits) - first));
}

// Whether each output row's samples fit in the scratch memory.
bool JpegPacker::has_rows() const {
  if (plan_.ring_bands == packed_.rows) return true;
  for (int y = 0; y < from_.size.height; ++y) {
    const Bands bands = bands_of_row(out_.data(), packed_.down_axis, plan_, from_.size.height, y);
    if (bands.end - bands.first > plan_.ring_bands) return false;
  }
  return true;
}

}  // namespace

size_t pack_jpeg(const PackSource& source, std::span<std::byte> out) {
  return JpegPacker(source, out).pack();
}

}  // namespace saturate
