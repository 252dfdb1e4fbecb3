#include "image/jpeg_decoder.h"

#include <jerror.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "image/fast_kernels.h"

namespace saturate {
namespace {

constexpr int kMarkerApp1 = JPEG_APP0 + 1;
// A progressive image of thousands of tiny scans takes hours; encoders write about ten.
constexpr int kMaxScans = 500;

// Warnings that do not affect pixels.
constexpr int kHarmless[] = {JWRN_ADOBE_XFORM, JWRN_EXTRANEOUS_DATA, JWRN_JFIF_MAJOR,
                             JWRN_NOT_SEQUENTIAL, JWRN_TOO_MUCH_DATA};

// Pillow's cmyk2rgb (libImaging/Convert.c): k - ink * k / 255, rounded, k = 255 - K.
uint8_t light_of(int ink, int k) {
  const int product = ink * k + 128;
  return static_cast<uint8_t>(k - (((product >> 8) + product) >> 8));
}

// Adobe stores inverted inks, and Pillow assumes this for every CMYK JPEG; `row` is thus 255 - ink.
void inverted_cmyk_to_rgb(const uint8_t* row, int width, uint8_t* out) {
  for (int x = 0; x < width; ++x, row += 4, out += 3)
    for (int c = 0; c < 3; ++c) out[c] = light_of(255 - row[c], row[3]);
}

}  // namespace

void JpegDecoder::on_message(j_common_ptr info, int level) {
  if (level < 0 && std::ranges::find(kHarmless, info->err->msg_code) == std::end(kHarmless))
    JpegErrors::leave(info);
}

void JpegDecoder::on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  info->err->msg_code = JERR_BAD_PROGRESSION;
  JpegErrors::leave(info);
}

JpegDecoder::JpegDecoder(Markers markers) : markers_(markers) {
  info_.err = &errors_.base;
  errors_.base.emit_message = on_message;
  progress_.progress_monitor = on_progress;
}

JpegDecoder::~JpegDecoder() {
  close();
}

void JpegDecoder::close() {
  jpeg_destroy_decompress(&info_);
}

void JpegDecoder::report(const std::string& where) {
  const int code = errors_.base.msg_code;
  if (code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
  if (code == JWRN_JPEG_EOF || code == JERR_INPUT_EOF) fail_image("JPEG data is truncated", where);
  if (code == JERR_BAD_PROGRESSION && info_.input_scan_number > kMaxScans)
    fail_image("JPEG has more than " + std::to_string(kMaxScans) + " scans", where);
  fail_image("JPEG data is corrupt or unsupported: " + errors_.message(info_), where);
}

CodecHeader JpegDecoder::open(std::span<const std::byte> bytes, const std::string& where,
                              int shown) {
  close();
  const bool created = errors_.guarded([this] {
    jpeg_create_decompress(&info_);
    jpeg_save_markers(&info_, kMarkerApp1, 0xffff);
    if (markers_ == Markers::kNeeded) return;
    jpeg_save_markers(&info_, JPEG_COM, 0xffff);
    for (int i = 0; i < 16; ++i) jpeg_save_markers(&info_, JPEG_APP0 + i, 0xffff);
  });
  if (!created) throw std::bad_alloc();
  info_.progress = &progress_;
  const bool ok = errors_.guarded([&] {
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info_, TRUE);
  });
  if (!ok) report(where);
  const int components = info_.num_components;
  if (components != 1 && components != 3 && components != 4)
    fail_image("JPEG has " + std::to_string(components) + " components, not 1, 3 or 4", where);
  width_ = static_cast<int>(info_.image_width);
  if (shown > width_) fail_image("JPEG is narrower than its record says", where);
  if (shown > 0) width_ = shown;
  orientation_ = find_orientation();
  return {width_, static_cast<int>(info_.image_height), components, orientation_};
}

int JpegDecoder::find_orientation() const {
  OrientationFinder orientation;
  for (auto* marker = info_.marker_list; marker != nullptr; marker = marker->next)
    if (marker->marker == kMarkerApp1)
      orientation.see({reinterpret_cast<const char*>(marker->data), marker->data_length});
  return orientation.found();
}

int JpegDecoder::read(const std::string& where, Image& out) {
  const bool cmyk = info_.num_components == 4;
  info_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  info_.dct_method = JDCT_ISLOW;
  info_.do_fancy_upsampling = TRUE;
  out.resize(width_, static_cast<int>(info_.image_height));
  if (cmyk) cmyk_row_.resize(size_t(width_) * 4);
  const bool ok = errors_.guarded([&] {
    jpeg_start_decompress(&info_);
    // So that upsampled chroma ends at the image's own border too, as without padding.
    JDIMENSION first = 0, columns = static_cast<JDIMENSION>(width_);
    if (columns < info_.image_width) jpeg_crop_scanline(&info_, &first, &columns);
    cmyk ? read_cmyk(out) : read_rgb(out);
    jpeg_finish_decompress(&info_);
  });
  if (!ok) report(where);
  return orientation_;
}

void JpegDecoder::read_rgb(Image& out) {
  constexpr int kRows = 16;
  while (info_.output_scanline < info_.output_height) {
    const int next = static_cast<int>(info_.output_scanline);
    const int count = std::min(kRows, out.height - next);
    JSAMPROW rows[kRows];
    for (int i = 0; i < count; ++i) rows[i] = out.row(next + i);
    jpeg_read_scanlines(&info_, rows, static_cast<JDIMENSION>(count));
  }
}

// libjpeg makes inverted inks of YCCK by subtracting the RGB from 255 (jdcolor.c).
void JpegDecoder::inks_to_rgb(uint8_t* const (&row)[4], size_t columns) const {
  const bool ycck = info_.jpeg_color_space == JCS_YCCK;
  for (size_t x = 0; x < columns; ++x) {
    uint8_t ink[3];
    if (ycck)
      store_rgb(row[0][x], row[1][x], row[2][x], ink);
    else
      for (size_t c = 0; c < 3; ++c) ink[c] = static_cast<uint8_t>(255 - row[c][x]);
    for (size_t c = 0; c < 3; ++c) row[c][x] = light_of(ink[c], row[3][x]);
  }
}

void JpegDecoder::read_cmyk(Image& out) {
  JSAMPROW row = cmyk_row_.data();
  while (info_.output_scanline < info_.output_height) {
    uint8_t* to = out.row(static_cast<int>(info_.output_scanline));
    jpeg_read_scanlines(&info_, &row, 1);
    inverted_cmyk_to_rgb(row, out.width, to);
  }
}

}  // namespace saturate
