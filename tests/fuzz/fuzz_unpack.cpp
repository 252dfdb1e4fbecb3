#include "tests/fuzz/fuzz_unpack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "image/fast_decoder.h"
#include "image/packed_layout.h"
#include "saturate/data/random.h"

namespace saturate::testing {
namespace {

constexpr int kSide = 72;

// With both samplings, and parts between points or in segments.
std::vector<std::vector<std::byte>> make_packed() {
  std::vector<std::vector<std::byte>> packed;
  for (uint64_t i = 0; i < 4; ++i) {
    RandomStream random(12, 0, i, RandomUse::kSynthetic);
    Image image;
    image.resize(208, 144);
    for (uint8_t& value : image.pixels) value = uint8_t(90 + random.below(30));
    std::vector<std::byte> file = encode_jpeg(image, 40, i % 2 == 0), split;
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
    const SampleTransform crop{{20, 10, 160, 120}, 0, 0, i == 1};
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
  std::vector<uint8_t> scratch(unpack_scratch_bytes(kSide)), out(pixel_bytes(kSide));
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
  for (; bytes.size() >= 3; bytes = bytes.subspan(3)) {
    const auto number = [&](size_t i) { return std::to_integer<size_t>(bytes[i]); };
    packed[(number(0) << 8 | number(1)) % packed.size()] = bytes[2];
  }
  return decoded + unpacks(std::move(packed));
}

}  // namespace saturate::testing
