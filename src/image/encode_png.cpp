#include <png.h>

#include "saturate/data/error.h"
#include "saturate/data/image.h"

namespace saturate {

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
         std::to_string(width) + " x " + std::to_string(height) + " pixels", "Free some memory");
  bytes.resize(size);
  return bytes;
}

}  // namespace saturate
