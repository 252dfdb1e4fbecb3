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

SampleTransform choose_transform(const ImageInfo& info, int choice) {
  SampleTransform transform;
  transform.crop.width = std::max(1, info.width >> (choice & 3));
  transform.crop.height = std::max(1, info.height >> (choice >> 2 & 3));
  transform.crop.x = choice & 16 ? info.width - transform.crop.width : 0;
  transform.crop.y = choice & 32 ? info.height - transform.crop.height : 0;
  transform.flip = choice & 64;
  return transform;
}

// Empty if the image is left to exact mode.
std::vector<std::byte> fast_pixels(FastDecoder& decoder, std::span<const std::byte> bytes,
                                   int choice) {
  const auto info = decoder.open(bytes, "input");
  std::vector<std::byte> out(kSide * kSide * 3);
  if (!info || int64_t{info->width} * info->height > kMaxPixels ||
      !decoder.read("input", choose_transform(*info, choice), kSide, out.data()))
    out.clear();
  return out;
}

// Twice with an index, in which the first crop's points are known for the second.
bool decode_fast(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  ScanIndex index;
  FastDecoder plain(kMaxPixels), indexed(kMaxPixels, fast_kernels(), &index);
  const int choice = std::to_integer<int>(bytes.back());
  for (const int crop : {choice, choice * 7 + 3}) {
    const auto pixels = fast_pixels(plain, bytes, crop);
    if (pixels.empty()) return false;
    // Data after the crop is not read, so that one may find damage that the other does not.
    const auto found = fast_pixels(indexed, bytes, crop);
    if (!found.empty() && found != pixels) throw std::logic_error("an index changes pixels");
  }
  return true;
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
