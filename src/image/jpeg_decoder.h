#pragma once

#include <csetjmp>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "image/codec.h"
#include "image/libjpeg.h"

namespace saturate {

// One libjpeg decompressor, reused for every image. open() then read(), or open() alone; `bytes`
// must live until then. Not movable: libjpeg keeps pointers into it.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  CodecHeader open(std::span<const std::byte> bytes, const std::string& where);
  // Pixels as stored, before orientation. Returns the orientation.
  int read(const std::string& where, Image& out);
  // Frees what an image took, also after a failure.
  void close();

 private:
  struct Errors {
    jpeg_error_mgr base;  // first, so that libjpeg's pointer to it is a pointer to Errors
    std::jmp_buf jump;
  };
  [[noreturn]] static void on_error(j_common_ptr info);
  static void on_message(j_common_ptr info, int level);
  static void on_progress(j_common_ptr info);

  // Runs `body`, which may call libjpeg; false when libjpeg failed.
  template <class Body>
  bool guarded(const Body& body);
  [[noreturn]] void report(const std::string& where);
  int find_orientation() const;
  void read_rgb(Image& out);
  void read_cmyk(Image& out);

  jpeg_decompress_struct info_{};
  Errors errors_{};
  jpeg_progress_mgr progress_{};
  std::vector<uint8_t> cmyk_row_;  // [width, 4]
  int orientation_ = 1;
};

}  // namespace saturate
