#include "tests/fuzz/fuzz_image.h"

#include <algorithm>
#include <stdexcept>

#include "image/fast_decoder.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"

namespace saturate::testing {
namespace {

// Small enough that a progressive file of many scans ends in time.
constexpr int64_t kMaxPixels = 1 << 18;
constexpr int kSide = 24;

template <class Decode>
bool decodes(const Decode& decode) {
  try {
    return decode();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
    return false;
  }
}

bool decode_whole(std::span<const std::byte> bytes) {
  Image image;
  Decoder(kMaxPixels).decode(bytes, "input", image);
  if (image.pixels.size() != size_t(image.width) * size_t(image.height) * 3)
    throw std::logic_error("pixels do not fill the image");
  return true;
}

bool decode_fast(std::span<const std::byte> bytes) {
  FastDecoder decoder(kMaxPixels);
  const auto info = decoder.open(bytes, "input");
  if (!info || int64_t{info->width} * info->height > kMaxPixels) return false;
  const int choice = std::to_integer<int>(bytes.back());
  SampleTransform transform;
  transform.crop.width = std::max(1, info->width >> (choice & 3));
  transform.crop.height = std::max(1, info->height >> (choice >> 2 & 3));
  transform.crop.x = choice & 16 ? info->width - transform.crop.width : 0;
  transform.crop.y = choice & 32 ? info->height - transform.crop.height : 0;
  transform.flip = choice & 64;
  std::vector<std::byte> out(kSide * kSide * 3);
  return decoder.read("input", transform, kSide, {}, out.data());
}

bool decode_mask_numbers(std::span<const std::byte> bytes) {
  const ImageInfo info = Decoder(kMaxPixels).probe(bytes, "input");
  if (info.format != ImageFormat::kPng || int64_t{info.width} * info.height > kMaxPixels)
    return false;
  ClassMap mask;
  decode_mask_png(bytes, "input", info.width, info.height, "image", mask);
  if (mask.classes.size() != size_t(info.width) * size_t(info.height))
    throw std::logic_error("class numbers do not fill the mask");
  return true;
}

}  // namespace

size_t fuzz_image(std::span<const std::byte> bytes) {
  return size_t(decodes([&] { return decode_whole(bytes); })) +
         size_t(decodes([&] { return decode_fast(bytes); }));
}

size_t fuzz_mask(std::span<const std::byte> bytes) {
  return size_t(decodes([&] { return decode_mask_numbers(bytes); }));
}

}  // namespace saturate::testing
