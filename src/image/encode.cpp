#include <png.h>

#include <cstddef>
#include <cstdlib>

#include "image/codec.h"
#include "image/libjpeg.h"

namespace saturate {
namespace {

// A libjpeg compressor to memory.
class JpegEncoder {
 public:
  JpegEncoder() { info_.err = &errors_.base; }
  ~JpegEncoder() {
    jpeg_destroy_compress(&info_);
    std::free(buffer_);
  }
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;

  bool encode(const Image& image, int quality, bool full_chroma) {
    const bool ok = errors_.guarded([&] { compress(image, quality, full_chroma); });
    // libjpeg may have freed it while growing: leak it rather than free it twice.
    if (!ok) buffer_ = nullptr;
    return ok;
  }

  std::vector<std::byte> bytes() const {
    const auto* data = reinterpret_cast<const std::byte*>(buffer_);
    return {data, data + size_};
  }
  std::string message() { return errors_.message(info_); }

 private:
  void compress(const Image& image, int quality, bool full_chroma) {
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
  }

  jpeg_compress_struct info_{};
  JpegErrors errors_;
  unsigned char* buffer_ = nullptr;
  unsigned long size_ = 0;
};

}  // namespace

std::vector<std::byte> encode_jpeg(const Image& image, int quality, bool full_chroma) {
  const std::string size = size_text(image.width, image.height) + " pixels";
  const auto in_range = [](int side) { return side >= 1 && side <= JPEG_MAX_DIMENSION; };
  if (!in_range(image.width) || !in_range(image.height))
    fail(ErrorKind::kRun, "image cannot be stored as JPEG", size,
         "Use an image of 1 to " + std::to_string(JPEG_MAX_DIMENSION) + " pixels a side");
  JpegEncoder encoder;
  if (!encoder.encode(image, quality, full_chroma))
    fail(ErrorKind::kRun, "cannot encode a JPEG: " + encoder.message(), size, "Free some memory");
  return encoder.bytes();
}

// libpng's simplified interface returns errors, so nothing is thrown through C.
std::vector<std::byte> encode_png(const uint8_t* pixels, int width, int height, int channels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::byte> bytes(size);
  const int row_stride = width * channels;
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, row_stride, nullptr) == 0)
    fail(ErrorKind::kRun, "cannot encode a PNG: " + std::string(image.message),
         size_text(width, height) + " pixels", "Free some memory");
  bytes.resize(size);
  return bytes;
}

}  // namespace saturate
