#include <csetjmp>
#include <cstddef>
#include <cstdlib>

#include "image/libjpeg.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"

namespace saturate {
namespace {

// A libjpeg compressor to memory. libjpeg's errors return by longjmp; see codec.h.
class JpegEncoder {
 public:
  JpegEncoder() {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = [](j_common_ptr info) {
      std::longjmp(reinterpret_cast<Errors*>(info->err)->jump, 1);
    };
  }
  ~JpegEncoder() {
    jpeg_destroy_compress(&info_);
    std::free(buffer_);
  }
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;

  bool encode(const Image& image, int quality, bool full_chroma) {
    if (setjmp(errors_.jump) != 0) {
      buffer_ = nullptr;  // libjpeg may have freed it while growing: leak it rather than free it
                          // twice
      return false;
    }
    jpeg_create_compress(&info_);
    jpeg_mem_dest(&info_, &buffer_, &size_);
    info_.image_width = static_cast<JDIMENSION>(image.width);
    info_.image_height = static_cast<JDIMENSION>(image.height);
    info_.input_components = 3;
    info_.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info_);
    jpeg_set_quality(&info_, quality, TRUE);
    info_.comp_info[0].h_samp_factor = info_.comp_info[0].v_samp_factor = full_chroma ? 1 : 2;
    jpeg_start_compress(&info_, TRUE);
    while (info_.next_scanline < info_.image_height) {
      // libjpeg only reads the row; its type is older than const.
      JSAMPROW row = const_cast<uint8_t*>(image.row(static_cast<int>(info_.next_scanline)));
      jpeg_write_scanlines(&info_, &row, 1);
    }
    jpeg_finish_compress(&info_);
    return true;
  }

  std::vector<std::byte> bytes() const {
    const auto* data = reinterpret_cast<const std::byte*>(buffer_);
    return {data, data + size_};
  }
  std::string message() {
    char text[JMSG_LENGTH_MAX];
    errors_.base.format_message(reinterpret_cast<j_common_ptr>(&info_), text);
    return text;
  }

 private:
  struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf jump;
  };
  jpeg_compress_struct info_{};
  Errors errors_{};
  unsigned char* buffer_ = nullptr;
  unsigned long size_ = 0;
};

}  // namespace

std::vector<std::byte> encode_jpeg(const Image& image, int quality, bool full_chroma) {
  const auto size = std::to_string(image.width) + " x " + std::to_string(image.height) + " pixels";
  const auto in_range = [](int side) { return side >= 1 && side <= JPEG_MAX_DIMENSION; };
  if (!in_range(image.width) || !in_range(image.height))
    fail(ErrorKind::kRun, "image cannot be stored as JPEG", size,
         "Use an image of 1 to " + std::to_string(JPEG_MAX_DIMENSION) + " pixels a side");
  JpegEncoder encoder;
  if (!encoder.encode(image, quality, full_chroma))
    fail(ErrorKind::kRun, "cannot encode a JPEG: " + encoder.message(), size, "Free some memory");
  return encoder.bytes();
}

}  // namespace saturate
