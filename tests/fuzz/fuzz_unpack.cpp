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

constexpr int kSlotSide = 72;

struct SoundSlot {
  std::vector<std::byte> bytes;
  size_t used = 0;
};

// With both samplings, and parts between points or in segments.
std::vector<SoundSlot> make_slots() {
  std::vector<SoundSlot> slots;
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
    SoundSlot slot{std::vector<std::byte>(slot_bytes(kSlotSide))};
    slot.used = decoder.pack("input", {{20, 10, 160, 120}, 0, 0, i == 1}, kSlotSide, slot.bytes);
    if (slot.used == 0) throw std::logic_error("a sound JPEG is not packed");
    slots.push_back(std::move(slot));
  }
  return slots;
}

size_t unpacks(std::vector<std::byte> slot) {
  std::memcpy(slot.data(), &kPackedMagic, sizeof kPackedMagic);
  const uint8_t packed = 1;
  uint8_t failed = 7;
  std::vector<uint8_t> scratch(unpack_scratch_bytes(kSlotSide)), out(slot.size());
  unpack_jpegs_cpu({.slots = slot.data(),
                    .packed = &packed,
                    .count = 1,
                    .size = kSlotSide,
                    .scratch = scratch.data(),
                    .out = out.data(),
                    .failed = &failed});
  if (failed > 1) throw std::logic_error("a slot was forgotten");
  if (failed == 1 && !std::ranges::all_of(out, [](uint8_t value) { return value == 0; }))
    throw std::logic_error("a slot that failed has pixels");
  return 1 - failed;
}

}  // namespace

size_t fuzz_unpack(std::span<const std::byte> bytes) {
  static const std::vector<SoundSlot> sound = make_slots();
  std::vector<std::byte> slot(slot_bytes(kSlotSide));
  std::ranges::copy(bytes.first(std::min(bytes.size(), slot.size())), slot.begin());
  size_t decoded = unpacks(std::move(slot));
  const SoundSlot& from = sound[bytes.size() % sound.size()];
  slot = from.bytes;
  for (; bytes.size() >= 3; bytes = bytes.subspan(3)) {
    const auto number = [&](size_t i) { return std::to_integer<size_t>(bytes[i]); };
    slot[(number(0) << 8 | number(1)) % from.used] = bytes[2];
  }
  return decoded + unpacks(std::move(slot));
}

}  // namespace saturate::testing
