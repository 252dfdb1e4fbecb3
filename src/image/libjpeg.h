// jpeglib.h, which needs two headers before it, and error handling.
#pragma once

#include <csetjmp>
#include <string>

// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

namespace saturate {

// libjpeg's errors return by longjmp to guarded(); see codec.h.
struct JpegErrors {
  jpeg_error_mgr base{};  // first, so that libjpeg's pointer to it is a pointer to this
  std::jmp_buf jump{};

  JpegErrors() {
    jpeg_std_error(&base);
    base.error_exit = leave;
  }
  [[noreturn]] static void leave(j_common_ptr info) {
    std::longjmp(reinterpret_cast<JpegErrors*>(info->err)->jump, 1);
  }
  // Runs `body`, which may call libjpeg; false if libjpeg failed.
  template <class Body>
  bool guarded(const Body& body) {
    if (setjmp(jump) != 0) return false;
    body();
    return true;
  }
  // The last error of a compressor or decompressor.
  template <class Info>
  std::string message(Info& info) const {
    char text[JMSG_LENGTH_MAX];
    base.format_message(reinterpret_cast<j_common_ptr>(&info), text);
    return text;
  }
};

// How many `b` hold `a`, such as MCUs the pixels of a side.
inline int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Whether an image is large enough to be cut into segments or packed for a GPU.
inline bool is_packed_size(int width, int height) {
  return width >= 2 * DCTSIZE && height >= 2 * DCTSIZE;
}

// Pixels along a side of a block in the scaled image.
inline int scaled_block_size(const jpeg_component_info& component) {
#if JPEG_LIB_VERSION >= 70  // Ubuntu's libjpeg-turbo has the structures of libjpeg 8
  return component.DCT_h_scaled_size;
#else
  return component.DCT_scaled_size;
#endif
}

}  // namespace saturate
