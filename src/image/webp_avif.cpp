#include "image/webp_avif.h"

#if SATURATE_HAS_AVIF
#include <avif/avif.h>
#endif
#if SATURATE_HAS_WEBP
#include <webp/decode.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

namespace saturate {

#if !SATURATE_HAS_WEBP || !SATURATE_HAS_AVIF
namespace {

[[noreturn]] void fail_without(const std::string& library, const char* file,
                               const std::string& where) {
  fail(ErrorKind::kData, std::string(file) + " file, and saturate was built without " + library,
       where,
       "Install " + library + "-dev and build saturate again, or convert the file to JPEG or PNG");
}

}  // namespace
#endif

#if SATURATE_HAS_WEBP

namespace {

const uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

// The orientation in the EXIF chunk of a RIFF file.
int webp_orientation(std::span<const std::byte> bytes) {
  constexpr size_t kFile = 12, kChunk = 8;  // bytes before the first chunk; before a chunk's data
  for (size_t at = kFile; at <= bytes.size() && bytes.size() - at >= kChunk;) {
    uint32_t size;
    std::memcpy(&size, bytes.data() + at + 4, sizeof size);
    const auto rest = bytes.subspan(at + kChunk);
    if (size > rest.size()) break;
    if (std::memcmp(bytes.data() + at, "EXIF", 4) == 0) {
      auto tiff = rest.first(size);
      constexpr std::string_view kPrefix("Exif\0\0", 6);  // of some writers
      if (tiff.size() >= 6 && std::memcmp(tiff.data(), kPrefix.data(), 6) == 0)
        tiff = tiff.subspan(6);
      return exif_orientation(tiff).value_or(1);
    }
    at += kChunk + size + size % 2;
  }
  return 1;
}

[[noreturn]] void fail_webp(VP8StatusCode status, const std::string& where) {
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status == VP8_STATUS_NOT_ENOUGH_DATA) fail_image("WebP data is truncated", where);
  fail_image("WebP data is corrupt or unsupported: error " + std::to_string(status) + " of libwebp",
             where);
}

}  // namespace

CodecHeader WebpDecoder::open(std::span<const std::byte> bytes, const std::string& where) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data_of(bytes), bytes.size(), &features);
  if (status != VP8_STATUS_OK) fail_webp(status, where);
  if (features.has_animation)
    fail(ErrorKind::kData, "an animated WebP is not supported", where,
         "Convert its first picture to a WebP or PNG, or set data.on_error=skip");
  bytes_ = bytes;
  return header_ = {features.width, features.height, features.has_alpha ? 4 : 3,
                    webp_orientation(bytes)};
}

int WebpDecoder::read(const std::string& where, Image& out) {
  out.resize(header_.width, header_.height);
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) fail_image("libwebp has an unexpected version", where);
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out.pixels.data(), header_.width * 3, out.pixels.size()};
  const VP8StatusCode status = WebPDecode(data_of(bytes_), bytes_.size(), &config);
  if (status != VP8_STATUS_OK) fail_webp(status, where);
  return header_.orientation;
}

#else

CodecHeader WebpDecoder::open(std::span<const std::byte>, const std::string& where) {
  fail_without("libwebp", "a WebP", where);
}
int WebpDecoder::read(const std::string&, Image&) {
  return header_.orientation;
}

#endif

#if SATURATE_HAS_AVIF

namespace {

// A rotation anticlockwise, then mirroring: by mode (0: top and bottom are exchanged, 1: left and
// right) and quarter turns.
int avif_orientation(const avifImage& image) {
  constexpr int kTurned[4] = {1, 8, 3, 6};
  constexpr int kMirrored[2][4] = {{4, 5, 2, 7}, {2, 7, 4, 5}};
  const int turns = image.transformFlags & AVIF_TRANSFORM_IROT ? image.irot.angle & 3 : 0;
  if (!(image.transformFlags & AVIF_TRANSFORM_IMIR)) return kTurned[turns];
#if AVIF_VERSION >= 1000000
  return kMirrored[image.imir.axis & 1][turns];
#else
  return kMirrored[image.imir.mode & 1][turns];
#endif
}

[[noreturn]] void fail_avif(avifResult result, const std::string& where) {
  if (result == AVIF_RESULT_OUT_OF_MEMORY) throw std::bad_alloc();
  if (result == AVIF_RESULT_TRUNCATED_DATA) fail_image("AVIF data is truncated", where);
  fail_image("AVIF data is corrupt or unsupported: " + std::string(avifResultToString(result)),
             where);
}

}  // namespace

void AvifDecoder::Destroy::operator()(avifDecoder* decoder) const {
  avifDecoderDestroy(decoder);
}

CodecHeader AvifDecoder::open(std::span<const std::byte> bytes, const std::string& where) {
  decoder_.reset(avifDecoderCreate());
  if (!decoder_) throw std::bad_alloc();
  decoder_->ignoreExif = decoder_->ignoreXMP = AVIF_TRUE;  // the container's transforms count
  decoder_->strictFlags = AVIF_STRICT_DISABLED;
  avifResult result = avifDecoderSetIOMemory(
      decoder_.get(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (result == AVIF_RESULT_OK) result = avifDecoderParse(decoder_.get());
  if (result != AVIF_RESULT_OK) fail_avif(result, where);
  const avifImage& image = *decoder_->image;
  const int colours = image.yuvFormat == AVIF_PIXEL_FORMAT_YUV400 ? 1 : 3;
  const bool alpha = decoder_->alphaPresent != AVIF_FALSE;
  return header_ = {int(image.width), int(image.height), colours + (alpha ? 1 : 0),
                    avif_orientation(image)};
}

int AvifDecoder::read(const std::string& where, Image& out) {
  avifResult result = avifDecoderNextImage(decoder_.get());
  if (result != AVIF_RESULT_OK) fail_avif(result, where);
  const avifImage& image = *decoder_->image;
  if (int(image.width) != header_.width || int(image.height) != header_.height)
    fail_image("AVIF data has pixels of another size than its header says", where);
  out.resize(header_.width, header_.height);
  avifRGBImage rgb;
  avifRGBImageSetDefaults(&rgb, &image);
  // Converting to RGB, libavif would blend with black.
  const bool alpha = image.alphaPlane != nullptr;
  const size_t pixels = size_t(header_.width) * size_t(header_.height), values = alpha ? 4 : 3;
  if (alpha) rgba_.resize(pixels * 4);
  rgb.format = alpha ? AVIF_RGB_FORMAT_RGBA : AVIF_RGB_FORMAT_RGB;
  rgb.depth = 8;
  rgb.pixels = alpha ? rgba_.data() : out.pixels.data();
  rgb.rowBytes = uint32_t(size_t(header_.width) * values);
  result = avifImageYUVToRGB(&image, &rgb);
  if (result != AVIF_RESULT_OK) fail_avif(result, where);
  for (size_t i = 0; alpha && i < pixels; ++i)
    std::copy_n(rgba_.data() + i * 4, 3, out.pixels.data() + i * 3);
  return header_.orientation;
}

#else

void AvifDecoder::Destroy::operator()(avifDecoder*) const {}
CodecHeader AvifDecoder::open(std::span<const std::byte>, const std::string& where) {
  fail_without("libavif", "an AVIF", where);
}
int AvifDecoder::read(const std::string&, Image&) {
  return header_.orientation;
}

#endif

}  // namespace saturate
