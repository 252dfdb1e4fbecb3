#include "image/png_decoder.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"

namespace saturate {
namespace {

std::string size_text(int width, int height) {
  return std::to_string(width) + " x " + std::to_string(height);
}

bool is_png(std::span<const std::byte> bytes) {
  constexpr uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  if (bytes.size() < std::size(kSignature)) return false;
  for (size_t i = 0; i < std::size(kSignature); ++i)
    if (bytes[i] != std::byte{kSignature[i]}) return false;
  return true;
}

}  // namespace

void decode_mask_png(std::span<const std::byte> bytes, const std::string& name, int width,
                     int height, const std::string& image, ClassMap& out) {
  if (!is_png(bytes))
    fail(ErrorKind::kData, "the mask is not a PNG", name,
         "Masks are PNG files: other formats would change the class numbers");
  PngDecoder decoder;
  const CodecHeader header = decoder.open(bytes, name);
  if (header.width != width || header.height != height)
    fail(ErrorKind::kData,
         "the mask is of " + size_text(header.width, header.height) + " pixels, and its image " +
             image + " of " + size_text(width, height),
         name, "Create the mask again from this image");
  decoder.read_numbers(name, out);
}

}  // namespace saturate
