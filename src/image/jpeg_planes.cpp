// Planes without upsampling or colour conversion, limited to the columns and rows of a crop: from
// BaselineScan, or from the coefficients that libjpeg reads of other files.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "image/jpeg_decoder.h"
#include "image/segmented_jpeg.h"

namespace saturate {
namespace {

// Blocks of a component in an MCU. The blocks of a single component are not interleaved, whatever
// its factors are.
int blocks_across(const jpeg_decompress_struct& info, int c) {
  return info.num_components == 1 ? 1 : info.comp_info[c].h_samp_factor;
}
int blocks_down(const jpeg_decompress_struct& info, int c) {
  return info.num_components == 1 ? 1 : info.comp_info[c].v_samp_factor;
}
int mcu_blocks_across(const jpeg_decompress_struct& info) {
  return info.num_components == 1 ? 1 : info.max_h_samp_factor;
}
int mcu_blocks_down(const jpeg_decompress_struct& info) {
  return info.num_components == 1 ? 1 : info.max_v_samp_factor;
}

constexpr int kSmoothed = 10;  // coefficients that libjpeg looks at for that

// Whether libjpeg upsamples a plane of so many columns by filters (jdsample.c, jinit_upsampler).
// `across`, `down`: the factors. Otherwise it repeats samples.
bool is_filtered(int across, int down, int columns) {
  return across <= 2 && down <= 2 && (across == 1 || columns > 2);
}

}  // namespace

// Whether a progressive file lacks the last bits of coefficients, which libjpeg then estimates.
bool JpegDecoder::is_incomplete() const {
  if (!info_.progressive_mode || !info_.coef_bits) return false;
  for (int c = 0; c < info_.num_components; ++c)
    for (int k = 1; k < kSmoothed; ++k)
      if (info_.coef_bits[c][k] != 0) return true;
  return false;
}

bool JpegDecoder::has_planes() const {
  if (!can_read_planes() || is_rgb() ||
      !is_packed_size(int(info_.image_width), int(info_.image_height)))
    return false;
  if (info_.num_components == 1) return true;
  const jpeg_component_info &luma = info_.comp_info[0], &blue = info_.comp_info[1],
                            &red = info_.comp_info[2];
  const auto fits = [](int of_luma, int of_blue, int of_red) {
    return of_blue == of_red && (of_luma == of_blue || of_luma == 2 * of_blue);
  };
  return fits(luma.h_samp_factor, blue.h_samp_factor, red.h_samp_factor) &&
         fits(luma.v_samp_factor, blue.v_samp_factor, red.v_samp_factor) && luma.v_samp_factor <= 2;
}

bool JpegDecoder::can_read_planes() const {
  if (info_.arith_code || info_.data_precision != 8) return false;
  // Lossless: libjpeg-turbo 3 reads such files, in units of one sample.
  if (scaled_block_size(info_.comp_info[0]) != DCTSIZE) return false;
  for (int c = 0; c < info_.num_components; ++c) {
    const int across = info_.comp_info[c].h_samp_factor, down = info_.comp_info[c].v_samp_factor;
    // libjpeg upsamples by whole numbers only.
    if (info_.max_h_samp_factor % across != 0 || info_.max_v_samp_factor % down != 0) return false;
    // Inks must be converted before they are resized.
    if (has_inks() && (across < info_.max_h_samp_factor || down < info_.max_v_samp_factor))
      return false;
  }
  return true;
}

int JpegDecoder::coarseness() const {
  if (has_inks()) return 0;  // light is not linear in them
  int most = 1;
  for (int c = 0; c < info_.num_components; ++c) {
    const int ratio = std::max(info_.max_h_samp_factor / info_.comp_info[c].h_samp_factor,
                               info_.max_v_samp_factor / info_.comp_info[c].v_samp_factor);
    const bool is_chroma = c > 0 && !is_rgb();
    most = std::max(most, is_chroma ? divide_up(ratio, 2) : ratio);
  }
  return most;
}

bool JpegDecoder::has_points() const {
  constexpr int64_t kLeastPixels = 1 << 14;
  const bool one_scan = info_.comps_in_scan == info_.num_components;
  return !info_.progressive_mode && one_scan && !has_inks() && !BaselineScan::has_restarts(info_) &&
         int64_t{info_.image_width} * info_.image_height >= kLeastPixels;
}

JpegPlanes plan_planes(const PlaneShape& shape, const Box& crop, int scale) {
  JpegPlanes planes;
  planes.count = shape.components;
  // Chroma upsampling reaches one pixel to either side.
  const int margin = planes.count == 3 ? 2 : 0;
  const int across = shape.mcu_across * DCTSIZE, down = shape.mcu_down * DCTSIZE;
  planes.columns = {std::max(crop.x - margin, 0) / across,
                    (std::min(crop.x + crop.width + margin, shape.width) - 1) / across + 1};
  for (int c = 0; c < planes.count; ++c) {
    const PlaneShape::Plane& from = shape.plane[c];
    const bool filtered = is_filtered(shape.mcu_across / from.across, shape.mcu_down / from.down,
                                      divide_up(shape.width * from.across, shape.mcu_across));
    const auto axis = [&](int blocks, int pixels_of_mcu, int pixels) {
      const int num = blocks * from.size, den = pixels_of_mcu;
      const bool upsampled = scale == DCTSIZE && num < den;
      return JpegPlanes::Axis{num, den, divide_up(pixels * num, den), upsampled && filtered,
                              upsampled && !filtered};
    };
    JpegPlanes::Plane& plane = planes.plane[c];
    plane.across = axis(from.across, across, shape.width);
    plane.down = axis(from.down, down, shape.height);
    plane.first_column = planes.columns.first * plane.across.num;
    plane.columns = (planes.columns.end - planes.columns.first) * plane.across.num;
  }
  planes.band_pixels = down;
  planes.first_band = std::max(crop.y - margin, 0) / down;
  planes.end_band = (std::min(crop.y + crop.height + margin, shape.height) - 1) / down + 1;
  return planes;
}

PlaneShape JpegDecoder::plane_shape() const {
  PlaneShape shape{std::min(info_.num_components, 3),
                   width_,
                   int(info_.image_height),
                   mcu_blocks_across(info_),
                   mcu_blocks_down(info_),
                   {}};
  for (int c = 0; c < shape.components; ++c)
    shape.plane[c] = {blocks_across(info_, c), blocks_down(info_, c),
                      scaled_block_size(info_.comp_info[c])};
  return shape;
}

std::optional<JpegPlanes> JpegDecoder::begin_planes(const std::string& where, const Box& crop,
                                                    int scale, const SegmentedJpeg* segments,
                                                    ScanPoints* points) {
  info_.scale_num = static_cast<unsigned>(scale);
  info_.scale_denom = DCTSIZE;
  if (!errors_.guarded([&] { jpeg_calc_output_dimensions(&info_); })) report(where);
  const JpegPlanes planes = plan_planes(plane_shape(), crop, scale);
  columns_ = planes.columns;
  bands_to_skip_ = planes.first_band;
  band_ = planes.first_band;
  if (!begin_scan(where, segments, points)) return std::nullopt;
  if (has_inks()) {
    const auto rows = size_t(planes.plane[0].band_rows()),
               columns = size_t(planes.plane[0].columns);
    black_.resize(rows * columns);
    black_rows_.resize(rows);
    for (size_t y = 0; y < rows; ++y) black_rows_[y] = black_.data() + y * columns;
  }
  return planes;
}

bool JpegDecoder::find_points(const std::string& where, ScanPoints& points) {
  if (!begin_planes(where, {0, 0, 1, 1}, DCTSIZE, nullptr, &points) || !in_scan_) return false;
  for (int row = 0; row < points.rows; ++row)
    if (!scan_.read_band(nullptr, true)) return false;
  return true;
}

bool JpegDecoder::begin_scan(const std::string& where, const SegmentedJpeg* segments,
                             ScanPoints* points) {
  coefficients_ = nullptr;
  in_scan_ = scan_.start(info_, columns_, segments, points);
  if (in_scan_) return true;
  const bool lacks_tables = !info_.dc_huff_tbl_ptrs[0] && !info_.progressive_mode;
  if (!lacks_tables) return read_coefficients(where);
  // libjpeg starts with the standard tables then.
  info_.raw_data_out = TRUE;
  if (!errors_.guarded([&] { jpeg_start_decompress(&info_); })) return false;
  return in_scan_ = scan_.start(info_, columns_, segments, points);
}

// For progressive files and those with several scans, which libjpeg decodes as a whole in any case.
bool JpegDecoder::read_coefficients(const std::string& where) {
  if (!info_.progressive_mode && !jpeg_has_multiple_scans(&info_)) return false;
  if (!errors_.guarded([&] { coefficients_ = jpeg_read_coefficients(&info_); })) report(where);
  for (int c = 0; c < info_.num_components; ++c)
    if (!info_.comp_info[c].quant_table) return false;  // no scan has the component
  return !is_incomplete();
}

// The blocks of a row that are below the crop.
void JpegDecoder::transform_row(int c, JDIMENSION row, uint8_t* const* out) {
  const jpeg_component_info& component = info_.comp_info[c];
  const int across = blocks_across(info_, c), first = columns_.first * across;
  const int count = std::min(columns_.end * across, int(component.width_in_blocks)) - first;
  JBLOCKARRAY blocks = (*info_.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&info_),
                                                        coefficients_[c], row, 1, FALSE);
  for (int b = 0; b < count; ++b)
    for (size_t v = 0; v < DCTSIZE; ++v)
      std::memcpy(
          groups_[size_t(b / kGroupBlocks) * DCTSIZE + v].value + b % kGroupBlocks * DCTSIZE,
          blocks[0][first + b] + v * DCTSIZE, DCTSIZE * sizeof(JCOEF));
  inverse_dct(scaled_block_size(component))(groups_.data()->value, component.quant_table->quantval,
                                            count, out, 0);
}

bool JpegDecoder::read_band(const std::string& where, uint8_t* const* const rows[3]) {
  if (!has_inks()) return read_components(where, rows);
  uint8_t* const* const all[4] = {rows[0], rows[1], rows[2], black_rows_.data()};
  if (!read_components(where, all)) return false;
  for (size_t y = 0; y < black_rows_.size(); ++y)
    inks_to_rgb({rows[0][y], rows[1][y], rows[2][y], black_rows_[y]},
                black_.size() / black_rows_.size());
  return true;
}

bool JpegDecoder::read_components(const std::string& where, uint8_t* const* const* rows) {
  if (in_scan_) {
    for (; bands_to_skip_ > 0; --bands_to_skip_)
      if (!scan_.read_band(rows, true)) return false;
    return scan_.read_band(rows, false);
  }
  groups_.resize(size_t(columns_.end - columns_.first + 1) * 4 * DCTSIZE);
  const bool ok = errors_.guarded([&] {
    for (int c = 0; c < info_.num_components; ++c) {
      const int down = blocks_down(info_, c), size = scaled_block_size(info_.comp_info[c]);
      for (int y = 0; y < down; ++y) {
        const auto row = JDIMENSION(band_ * down + y);
        if (row < info_.comp_info[c].height_in_blocks) transform_row(c, row, rows[c] + y * size);
      }
    }
  });
  if (!ok) report(where);
  ++band_;
  return true;
}

void JpegDecoder::check_end(const std::string& where) const {
  // Without restarts a scan's end is found before it is decoded, and libjpeg finds its own.
  if (!in_scan_ || info_.restart_interval == 0) return;
  const std::string_view rest(reinterpret_cast<const char*>(info_.src->next_input_byte),
                              info_.src->bytes_in_buffer);
  if (rest.rfind("\xff\xd9") == std::string_view::npos) fail_image("JPEG data is truncated", where);
}

}  // namespace saturate
