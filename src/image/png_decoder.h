#pragma once

#include <png.h>

#include <csetjmp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "image/codec.h"
#include "image/quick_png.h"
#include "saturate/data/image.h"

namespace saturate {

// open() then read(), or open() alone; `bytes` must live until then. Most files' pixels are read by
// QuickPng; libpng reads headers and all other files, and reports errors. libpng cannot reuse a
// reader, so each image creates one.
class PngDecoder {
 public:
  PngDecoder() = default;
  ~PngDecoder() { close(); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  // Pixels as stored, before orientation. Returns the orientation, known only now if the eXIf chunk
  // follows the pixels.
  int read(const std::string& where, Image& out);
  // The stored numbers of a PNG with one number per pixel; 1 to 8 bits.
  void read_numbers(const std::string& where, ClassMap& out);
  void close();

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message);
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep out, size_t count);

  template <class Body>
  bool guarded(const Body& body);
  [[noreturn]] void report(const std::string& where);
  int width() const;
  int height() const;
  int find_orientation();
  // Rows of `row_bytes`, as `set_output` makes them.
  void read_rows(const std::string& where, uint8_t* out, size_t row_bytes,
                 void (PngDecoder::*set_output)());
  void set_rgb_output();
  void set_number_output();

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  std::span<const std::byte> file_, rest_;  // rest_: bytes libpng has not read
  bool truncated_ = false;
  char message_[128] = {};
  std::vector<png_bytep> rows_;
  QuickPng quick_;
};

}  // namespace saturate
