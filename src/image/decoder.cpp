#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "image/jpeg_decoder.h"
#include "image/png_decoder.h"
#include "image/segmented_jpeg.h"
#include "image/webp_avif.h"
#include "saturate/data/image.h"

namespace saturate {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return as_text(bytes).starts_with(text);
}

bool is_png(std::span<const std::byte> bytes) {
  return begins_with(bytes, "\x89PNG\r\n\x1a\n");
}

// Whether one of the brands of an ISO base media file (AVIF, HEIC) is among `wanted`.
bool has_brand(std::span<const std::byte> bytes, std::initializer_list<std::string_view> wanted) {
  constexpr size_t kBrand = 4, kFirst = 8, kMost = 64;  // of brands
  if (bytes.size() < kFirst + kBrand || !begins_with(bytes.subspan(kBrand), "ftyp")) return false;
  const size_t box = std::to_integer<size_t>(bytes[2]) << 8 | std::to_integer<size_t>(bytes[3]);
  const size_t end = std::min({box, bytes.size(), kFirst + kMost * kBrand});
  for (size_t at = kFirst; at + kBrand <= end; at += kBrand)
    for (const std::string_view brand : wanted)
      if (begins_with(bytes.subspan(at), brand)) return true;
  return false;
}

ImageFormat detect_format(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.empty()) fail_image("file is empty", where);
  if (const auto format = image_format_of(bytes)) return *format;
  if (has_brand(bytes, {"heic", "heix", "heim", "heis", "hevc", "hevx", "mif1", "msf1"}))
    fail(ErrorKind::kData, "HEIC is not supported", where,
         "Convert it to JPEG, as with `heif-convert -q 95 IN.heic OUT.jpg`, or set "
         "data.on_error=skip");
  fail_image("not a JPEG, PNG, WebP or AVIF image", where);
}

void check_pixels(const CodecHeader& header, int64_t max_pixels, const std::string& where) {
  if (int64_t{header.width} * header.height <= max_pixels) return;
  fail_image("image of " + size_text(header.width, header.height) +
                 " pixels is over the limit of " + std::to_string(max_pixels) + " pixels",
             where);
}

}  // namespace

std::optional<ImageFormat> image_format_of(std::span<const std::byte> bytes) {
  if (begins_with(bytes, "\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (is_png(bytes)) return ImageFormat::kPng;
  if (begins_with(bytes, "RIFF") && bytes.size() > 12 && begins_with(bytes.subspan(8), "WEBP"))
    return ImageFormat::kWebp;
  if (has_brand(bytes, {"avif", "avis"})) return ImageFormat::kAvif;
  return std::nullopt;
}

const char* ending_of(ImageFormat format) {
  constexpr const char* kEndings[] = {".jpg", ".png", ".webp", ".avif", ".jpg"};  // by ImageFormat
  return kEndings[size_t(format)];
}

struct Decoder::State {
  int64_t max_pixels;
  JpegDecoder jpeg;
  PngDecoder png;
  WebpDecoder webp;
  AvifDecoder avif;
  Image as_stored;  // used for an image that is not upright
  SegmentedJpeg segmented;
  std::vector<std::byte> part;  // an assembled part of a segmented JPEG

  explicit State(int64_t pixels) : max_pixels(pixels) {}

  template <class Codec>
  void decode(Codec& codec, std::span<const std::byte> bytes, const std::string& where,
              Image& out) {
    const CodecSession session(codec);
    check_pixels(codec.open(bytes, where), max_pixels, where);
    const int orientation = codec.read(where, out);
    if (orientation <= 1 || orientation > 8) return;
    std::swap(out, as_stored);
    apply_orientation(as_stored, orientation, out);
  }

  // Calls `use` with the decoder of that format.
  template <class Use>
  auto with_codec(ImageFormat format, const Use& use) {
    switch (format) {
      case ImageFormat::kPng:
        return use(png);
      case ImageFormat::kWebp:
        return use(webp);
      case ImageFormat::kAvif:
        return use(avif);
      case ImageFormat::kJpeg:
      case ImageFormat::kRaw:
        break;
    }
    return use(jpeg);
  }
};

Decoder::Decoder(int64_t max_pixels) : state_(std::make_unique<State>(max_pixels)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

void Decoder::decode(std::span<const std::byte> bytes, const std::string& where, Image& out) {
  state_->with_codec(detect_format(bytes, where),
                     [&](auto& codec) { state_->decode(codec, bytes, where, out); });
}

Box Decoder::decode_segmented(std::span<const std::byte> bytes, int width, int height,
                              const Box& part, const std::string& where, Image& out) {
  State& state = *state_;
  state.segmented.open(bytes, width, height, where);
  check_pixels({width, height, 0, 1}, state.max_pixels, where);
  const Box held = state.segmented.assemble(part, state.part);
  const CodecSession session(state.jpeg);
  state.jpeg.open(state.part, where, held.width);
  state.jpeg.read(where, out);
  if (out.width != held.width || out.height != held.height)
    fail_image("JPEG in segments has parts of an unexpected size", where);
  return held;
}

ImageInfo Decoder::probe(std::span<const std::byte> bytes, const std::string& where) {
  const ImageFormat format = detect_format(bytes, where);
  const CodecHeader header = state_->with_codec(format, [&](auto& codec) {
    const CodecSession session(codec);
    const CodecHeader opened = codec.open(bytes, where);
    check_pixels(opened, state_->max_pixels, where);
    return opened;
  });
  const bool exchanged = orientation_of(header.orientation).exchanged;
  return {format, exchanged ? header.height : header.width,
          exchanged ? header.width : header.height, header.components};
}

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
