#include "image/png_decoder.h"

#include <cstdio>
#include <cstring>
#include <new>

namespace saturate {

void PngDecoder::on_error(png_structp png, png_const_charp message) {
  auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
  std::snprintf(self->message_, sizeof(self->message_), "%s", message);
  std::longjmp(self->jump_, 1);
}

void PngDecoder::on_read(png_structp png, png_bytep out, size_t count) {
  auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
  if (count > self->rest_.size()) {
    self->truncated_ = true;
    png_error(png, "end of data");
  }
  std::memcpy(out, self->rest_.data(), count);
  self->rest_ = self->rest_.subspan(count);
}

template <class Body>
bool PngDecoder::guarded(const Body& body) {
  if (setjmp(jump_) != 0) return false;
  body();
  return true;
}

void PngDecoder::close() {
  if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
}

void PngDecoder::report(const std::string& where) {
  if (truncated_) fail_image("PNG data is truncated", where);
  fail_image("PNG data is corrupt or unsupported: " + std::string(message_), where);
}

CodecHeader PngDecoder::open(std::span<const std::byte> bytes, const std::string& where) {
  close();
  file_ = rest_ = bytes;
  truncated_ = false;
  message_[0] = '\0';
  const bool ok = guarded([&] {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) return;
    png_set_read_fn(png_, this, on_read);
    // The decoder's own pixel limit applies instead.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(png_, info_);
  });
  if (!ok) report(where);
  if (info_ == nullptr) throw std::bad_alloc();
  const bool palette = png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE;
  return {width(), height(), palette ? 3 : png_get_channels(png_, info_), find_orientation()};
}

int PngDecoder::width() const {
  return static_cast<int>(png_get_image_width(png_, info_));
}

int PngDecoder::height() const {
  return static_cast<int>(png_get_image_height(png_, info_));
}

int PngDecoder::find_orientation() {
  png_uint_32 size = 0;
  png_bytep data = nullptr;
  if (png_get_eXIf_1(png_, info_, &size, &data) == 0) return 1;
  return exif_orientation(std::as_bytes(std::span(data, size))).value_or(1);
}

// Alpha, including tRNS, is dropped without blending, as Pillow's convert("RGB") does.
void PngDecoder::set_rgb_output() {
  png_set_strip_16(png_);
  png_set_palette_to_rgb(png_);
  png_set_expand_gray_1_2_4_to_8(png_);
  png_set_gray_to_rgb(png_);
  png_set_strip_alpha(png_);
  png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  if (png_get_rowbytes(png_, info_) != size_t(width()) * 3) png_error(png_, "rows are not RGB");
}

void PngDecoder::read_rows(const std::string& where, uint8_t* out, size_t row_bytes,
                           void (PngDecoder::*set_output)()) {
  rows_.resize(size_t(height()));
  for (size_t y = 0; y < rows_.size(); ++y) rows_[y] = out + y * row_bytes;
  const bool ok = guarded([&] {
    (this->*set_output)();
    png_read_image(png_, rows_.data());
    png_read_end(png_, info_);
  });
  if (!ok) report(where);
}

int PngDecoder::read(const std::string& where, Image& out) {
  if (const auto orientation = quick_.read(file_, width(), height(), out)) return *orientation;
  out.resize(width(), height());
  read_rows(where, out.pixels.data(), size_t(out.width) * 3, &PngDecoder::set_rgb_output);
  return find_orientation();
}

// Palettes and low-bit grey levels are not expanded: they are class numbers.
void PngDecoder::set_number_output() {
  png_set_packing(png_);
  png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  if (png_get_rowbytes(png_, info_) != size_t(width()))
    png_error(png_, "rows are not of one byte a pixel");
}

void PngDecoder::read_numbers(const std::string& where, ClassMap& out) {
  const int type = png_get_color_type(png_, info_);
  if ((type != PNG_COLOR_TYPE_GRAY && type != PNG_COLOR_TYPE_PALETTE) ||
      png_get_bit_depth(png_, info_) > 8)
    fail(ErrorKind::kData, "the mask does not have one number of up to 8 bits per pixel", where,
         "Write it as a grey PNG, or one with a palette, whose values are class numbers");
  out.width = width();
  out.height = height();
  out.classes.resize(size_t(out.width) * size_t(out.height));
  read_rows(where, out.classes.data(), size_t(out.width), &PngDecoder::set_number_output);
}

}  // namespace saturate
