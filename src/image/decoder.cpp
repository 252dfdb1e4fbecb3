#include <string_view>
#include <utility>

#include "image/exif.h"
#include "image/jpeg_decoder.h"
#include "image/png_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/image.h"

namespace saturate {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
      .starts_with(text);
}

bool is_png(std::span<const std::byte> bytes) {
  return begins_with(bytes, "\x89PNG\r\n\x1a\n");
}

ImageFormat detect_format(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.empty()) fail_image("file is empty", where);
  if (begins_with(bytes, "\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (is_png(bytes)) return ImageFormat::kPng;
  fail_image("not a JPEG or PNG image", where);
}

void check_pixels(const CodecHeader& header, int64_t max_pixels, const std::string& where) {
  if (int64_t{header.width} * header.height <= max_pixels) return;
  fail_image("image of " + size_text(header.width, header.height) +
                 " pixels is over the limit of " + std::to_string(max_pixels) + " pixels",
             where);
}

}  // namespace

struct Decoder::State {
  int64_t max_pixels;
  JpegDecoder jpeg;
  PngDecoder png;
  Image as_stored;  // used for an image that is not upright
  SegmentedJpeg segmented;
  std::vector<std::byte> part;  // an assembled part of a segmented JPEG

  explicit State(int64_t pixels) : max_pixels(pixels) {}

  template <class Codec>
  void decode(Codec& codec, std::span<const std::byte> bytes, const std::string& where,
              Image& out) {
    const CodecSession<Codec> session{codec};
    check_pixels(codec.open(bytes, where), max_pixels, where);
    const int orientation = codec.read(where, out);
    if (orientation <= 1 || orientation > 8) return;
    std::swap(out, as_stored);
    apply_orientation(as_stored, orientation, out);
  }

  template <class Codec>
  CodecHeader probe(Codec& codec, std::span<const std::byte> bytes, const std::string& where) {
    const CodecSession<Codec> session{codec};
    return codec.open(bytes, where);
  }
};

Decoder::Decoder(int64_t max_pixels) : state_(std::make_unique<State>(max_pixels)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

void Decoder::decode(std::span<const std::byte> bytes, const std::string& where, Image& out) {
  if (detect_format(bytes, where) == ImageFormat::kJpeg) {
    state_->decode(state_->jpeg, bytes, where, out);
  } else {
    state_->decode(state_->png, bytes, where, out);
  }
}

Box Decoder::decode_segmented(std::span<const std::byte> bytes, int width, int height,
                              const Box& part, const std::string& where, Image& out) {
  State& state = *state_;
  state.segmented.open(bytes, width, height, where);
  check_pixels({width, height, 0, 1}, state.max_pixels, where);
  const Box held = state.segmented.assemble(part, state.part);
  const CodecSession<JpegDecoder> session{state.jpeg};
  state.jpeg.open(state.part, where, held.width);
  state.jpeg.read(where, out);
  if (out.width != held.width || out.height != held.height)
    fail_image("JPEG in segments has parts of an unexpected size", where);
  return held;
}

ImageInfo Decoder::probe(std::span<const std::byte> bytes, const std::string& where) {
  const ImageFormat format = detect_format(bytes, where);
  const CodecHeader header = format == ImageFormat::kJpeg
                                 ? state_->probe(state_->jpeg, bytes, where)
                                 : state_->probe(state_->png, bytes, where);
  const bool exchanged = exchanges_axes(header.orientation);
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
