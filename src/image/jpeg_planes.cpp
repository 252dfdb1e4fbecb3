// Planes without upsampling or colour conversion: libjpeg's raw output, limited to the columns and
// rows of a crop. jpeg_crop_scanline() and jpeg_skip_scanlines() refuse raw output, but they only
// set the columns in `master` (jpegint.h) and whether a row is transformed: here, component_needed.
#include <algorithm>
#include <string_view>

#include "image/jpeg_decoder.h"
#include "image/segmented_jpeg.h"

namespace saturate {

bool JpegDecoder::has_planes() const {
  if (info_.arith_code || info_.data_precision != 8) return false;
  if (orientation_ > 1 && orientation_ <= 8) return false;
  // libjpeg upsamples the chroma of narrower images without a filter.
  if (std::min(info_.image_width, info_.image_height) < 2 * DCTSIZE) return false;
  const auto sampled = [&](int component, int across, int down) {
    const jpeg_component_info& info = info_.comp_info[component];
    return info.h_samp_factor == across && info.v_samp_factor == down;
  };
  if (info_.num_components == 1) return info_.jpeg_color_space == JCS_GRAYSCALE && sampled(0, 1, 1);
  return info_.num_components == 3 && info_.jpeg_color_space == JCS_YCbCr &&
         (sampled(0, 1, 1) || sampled(0, 2, 1) || sampled(0, 2, 2)) && sampled(1, 1, 1) &&
         sampled(2, 1, 1);
}

// Does what libjpeg's jpeg_crop_scanline() would.
void JpegDecoder::limit_columns(JpegPlanes& planes, const Box& crop) {
  // Chroma upsampling reaches one pixel to either side.
  const int margin = planes.count == 3 ? 2 : 0;
  const int across = info_.max_h_samp_factor * DCTSIZE;
  const int first = std::max(crop.x - margin, 0) / across;
  const int last = (std::min(crop.x + crop.width + margin, width_) - 1) / across;
  jpeg_decomp_master& master = *info_.master;
  master.first_iMCU_col = static_cast<JDIMENSION>(first);
  master.last_iMCU_col = static_cast<JDIMENSION>(last);
  for (int c = 0; c < planes.count; ++c) {
    const jpeg_component_info& info = info_.comp_info[c];
    const int blocks = info.h_samp_factor;
    master.first_MCU_col[c] = static_cast<JDIMENSION>(first * blocks);
    master.last_MCU_col[c] =
        std::min(static_cast<JDIMENSION>((last + 1) * blocks), info.width_in_blocks) - 1;
    planes.plane[c].first_column = first * blocks * info.DCT_scaled_size;
    planes.plane[c].columns = (last + 1 - first) * blocks * info.DCT_scaled_size;
  }
}

JpegPlanes JpegDecoder::begin_planes(const std::string& where, const Box& crop, int scale,
                                     const SegmentedJpeg* segments) {
  info_.raw_data_out = TRUE;
  info_.dct_method = JDCT_ISLOW;
  info_.scale_num = static_cast<unsigned>(scale);
  info_.scale_denom = DCTSIZE;
  if (!errors_.guarded([&] { jpeg_start_decompress(&info_); })) report(where);
  JpegPlanes planes;
  planes.count = info_.num_components;
  const int height = static_cast<int>(info_.image_height);
  for (int c = 0; c < planes.count; ++c) {
    const jpeg_component_info& info = info_.comp_info[c];
    const auto axis = [&](int factor, int largest_factor, int pixels) {
      const int num = factor * info.DCT_scaled_size, den = largest_factor * DCTSIZE;
      return JpegPlanes::Axis{num, den, (pixels * num + den - 1) / den,
                              scale == DCTSIZE && num < den};
    };
    planes.plane[c].across = axis(info.h_samp_factor, info_.max_h_samp_factor, width_);
    planes.plane[c].down = axis(info.v_samp_factor, info_.max_v_samp_factor, height);
  }
  limit_columns(planes, crop);
  const int margin = planes.count == 3 ? 2 : 0;
  planes.band_pixels = info_.max_v_samp_factor * DCTSIZE;
  planes.first_band = std::max(crop.y - margin, 0) / planes.band_pixels;
  planes.end_band = (std::min(crop.y + crop.height + margin, height) - 1) / planes.band_pixels + 1;
  bands_to_skip_ = planes.first_band;
  in_scan_ = scan_.start(info_, segments);
  return planes;
}

bool JpegDecoder::read_band(const std::string& where, uint8_t* const* const rows[3]) {
  if (in_scan_) {
    for (; bands_to_skip_ > 0; --bands_to_skip_)
      if (!scan_.read_band(rows, true)) return false;
    return scan_.read_band(rows, false);
  }
  JSAMPARRAY planes[3] = {const_cast<JSAMPARRAY>(rows[0]), const_cast<JSAMPARRAY>(rows[1]),
                          const_cast<JSAMPARRAY>(rows[2])};
  const auto transform = [&](boolean needed) {
    for (int c = 0; c < info_.num_components; ++c) info_.comp_info[c].component_needed = needed;
  };
  const JDIMENSION lines = static_cast<JDIMENSION>(info_.max_v_samp_factor) * DCTSIZE;
  const bool ok = errors_.guarded([&] {
    if (bands_to_skip_ > 0) transform(FALSE);
    for (; bands_to_skip_ > 0; --bands_to_skip_) jpeg_read_raw_data(&info_, planes, lines);
    transform(TRUE);
    jpeg_read_raw_data(&info_, planes, lines);
  });
  if (!ok) report(where);
  return true;
}

void JpegDecoder::check_end(const std::string& where) const {
  if (in_scan_) return;  // it requires an end marker to begin
  if (info_.inputctl->eoi_reached || info_.unread_marker == JPEG_EOI) return;
  const std::string_view rest(reinterpret_cast<const char*>(info_.src->next_input_byte),
                              info_.src->bytes_in_buffer);
  if (rest.rfind("\xff\xd9") == std::string_view::npos) fail_image("JPEG data is truncated", where);
}

}  // namespace saturate
