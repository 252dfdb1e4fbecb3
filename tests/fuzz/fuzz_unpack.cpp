#include "tests/fuzz/fuzz_unpack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "image/fast_decoder.h"
#include "image/packed_layout.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"

namespace saturate::testing {
namespace {

constexpr int kSide = 40;

std::vector<std::byte> small_jpeg(uint64_t number) {
  RandomStream random(12, 0, number, RandomUse::kSynthetic);
  Image image;
  image.resize(160, 112);
  for (uint8_t& value : image.pixels) value = uint8_t(90 + random.below(30));
  return encode_jpeg(image, 40, number % 2 == 0);
}

// Three bytes a change: where, and to which value.
void change(std::span<std::byte> file, std::span<const std::byte> changes) {
  for (; changes.size() >= 3; changes = changes.subspan(3)) {
    const auto number = [&](size_t i) { return std::to_integer<size_t>(changes[i]); };
    file[(number(0) << 8 | number(1)) % file.size()] = changes[2];
  }
}

// With both samplings, and parts between points or in segments.
std::vector<std::vector<std::byte>> make_packed() {
  std::vector<std::vector<std::byte>> packed;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<std::byte> file = small_jpeg(i), split;
    ScanIndex index;
    FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
    SegmentedJpeg segmented;
    int width, height;
    if (i < 2) {
      decoder.find_points(file, "input");
      decoder.open(file, "input");
    } else if (JpegSegmenter().cut(file, 4, split, width, height)) {
      segmented.open(split, width, height, "input");
      decoder.open(segmented, "input");
    } else {
      throw std::logic_error("a sound JPEG is not split");
    }
    const SampleTransform crop{{20, 10, 70, 50}, 0, 0, i == 1};
    packed.emplace_back(decoder.plan_pack(crop, kSide));
    if (packed.back().empty()) throw std::logic_error("a sound JPEG is not packed");
    decoder.pack(packed.back().data());
  }
  return packed;
}

size_t unpacks(std::vector<std::byte> packed) {
  std::memcpy(packed.data(), &kPackedMagic, sizeof kPackedMagic);
  const PackedPlace place{0, uint32_t(packed.size())};
  uint8_t failed = 7;
  static std::vector<uint8_t> scratch(unpack_scratch_bytes(kSide));
  std::vector<uint8_t> out(pixel_bytes(kSide));
  unpack_jpegs_cpu({.memory = packed.data(),
                    .places = &place,
                    .count = 1,
                    .size = kSide,
                    .scratch = scratch.data(),
                    .out = out.data(),
                    .failed = &failed});
  if (failed > 1) throw std::logic_error("a sample was forgotten");
  if (failed == 1 && !std::ranges::all_of(out, [](uint8_t value) { return value == 0; }))
    throw std::logic_error("a sample that failed has pixels");
  return 1 - failed;
}

}  // namespace

size_t fuzz_unpack(std::span<const std::byte> bytes) {
  static const std::vector<std::vector<std::byte>> sound = make_packed();
  std::vector<std::byte> packed(pixel_bytes(kSide));
  std::ranges::copy(bytes.first(std::min(bytes.size(), packed.size())), packed.begin());
  size_t decoded = unpacks(std::move(packed));
  packed = sound[bytes.size() % sound.size()];
  change(packed, bytes);
  return decoded + unpacks(std::move(packed));
}

namespace {

struct Segmented {
  std::vector<std::byte> file;
  int width = 0, height = 0;
  size_t header_at = 0, scan_at = 0;  // of the JPEG
};

// With a note for restoring the original.
Segmented make_segmented(uint64_t number) {
  Segmented made;
  JpegSegmenter segmenter;
  if (!segmenter.cut(small_jpeg(number), number < 2 ? 4 : 1, made.file, made.width, made.height,
                     true) ||
      !segmenter.is_exact())
    throw std::logic_error("a sound JPEG is not split");
  SegmentedJpeg opened;
  opened.open(made.file, made.width, made.height, "input");
  made.header_at = made.file.size() - opened.file().size();
  made.scan_at = made.header_at + opened.frame().scan_at;
  return made;
}

// Joins one with changes in the JPEG's header.
void join_forged(const Segmented& from, std::span<const std::byte> changes) {
  std::vector<std::byte> file = from.file, joined;
  change(std::span(file).first(from.scan_at).subspan(from.header_at), changes);
  try {
    JpegSegmenter().join(file, from.width, from.height, "input", joined);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
  }
}

}  // namespace

size_t fuzz_segments(std::span<const std::byte> bytes) {
  static const std::vector<Segmented> sound = [] {
    std::vector<Segmented> all;
    for (uint64_t i = 0; i < 4; ++i) all.push_back(make_segmented(i));
    return all;
  }();
  const Segmented& from = sound[bytes.size() % sound.size()];
  join_forged(from, bytes);
  std::vector<std::byte> file = from.file, out(pixel_bytes(kSide));
  change(file, bytes);
  const int choice = bytes.empty() ? 0 : std::to_integer<int>(bytes.back());
  const Box crop{choice % 4 * 20, choice / 4 % 4 * 15, 60 + choice / 16 % 4 * 10,
                 40 + choice / 64 * 8};
  SegmentedJpeg segmented;
  FastDecoder decoder;
  try {
    segmented.open(file, from.width, from.height, "input");
    return decoder.open(segmented, "input") && decoder.read("input", {crop}, kSide, out.data());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
    return 0;
  }
}

}  // namespace saturate::testing
