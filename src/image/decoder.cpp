#include <string_view>
#include <utility>

#include "image/exif.h"
#include "image/jpeg_decoder.h"
#include "image/png_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/image.h"

namespace saturate {
namespace {

ImageFormat detect_format(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.empty()) fail_image("file is empty", where);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  fail_image("not a JPEG or PNG image", where);
}

void check_pixels(const CodecHeader& header, int64_t max_pixels, const std::string& where) {
  if (int64_t{header.width} * header.height <= max_pixels) return;
  fail_image("image of " + std::to_string(header.width) + " x " + std::to_string(header.height) +
                 " pixels is over the limit of " + std::to_string(max_pixels) + " pixels",
             where);
}

// Closes a codec after the call, so that it keeps neither memory nor a pointer into `bytes`.
template <class Codec>
struct Session {
  Codec& codec;
  ~Session() { codec.close(); }
};

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
    const Session<Codec> session{codec};
    check_pixels(codec.open(bytes, where), max_pixels, where);
    const int orientation = codec.read(where, out);
    if (orientation <= 1 || orientation > 8) return;
    std::swap(out, as_stored);
    apply_orientation(as_stored, orientation, out);
  }

  template <class Codec>
  CodecHeader probe(Codec& codec, std::span<const std::byte> bytes, const std::string& where) {
    const Session<Codec> session{codec};
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
  const Session<JpegDecoder> session{state.jpeg};
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

}  // namespace saturate
