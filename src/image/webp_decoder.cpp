#include "image/webp_decoder.h"

#if SATURATE_HAS_WEBP
#include <webp/decode.h>
#endif

#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

namespace saturate {

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
  fail(ErrorKind::kData, "a WebP file, and saturate was built without libwebp", where,
       "Install libwebp-dev and build saturate again, or convert the file to JPEG or PNG");
}

int WebpDecoder::read(const std::string&, Image&) {
  return header_.orientation;
}

#endif

}  // namespace saturate
