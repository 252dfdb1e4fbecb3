// Packed JPEGs: making them, and unpacking them within memory of exactly their size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "image/fast_decoder.h"
#include "image/packed_layout.h"
#include "image/segmented_jpeg.h"
#include "tests/jpeg_encoding.h"

namespace saturate::testing {

inline const JpegKind kPackedKinds[] = {
    {"444"}, {"422", JCS_YCbCr, 2, 1}, {"420", JCS_YCbCr, 2, 2}, {"grey", JCS_GRAYSCALE}};

struct SplitFile {
  std::vector<std::byte> bytes;
  int width = 0, height = 0;
};

// Empty bytes if the file is not split.
inline SplitFile split_file(std::span<const std::byte> file, int mcus) {
  SplitFile result;
  if (!JpegSegmenter().cut(file, mcus, result.bytes, result.width, result.height))
    result.bytes.clear();
  return result;
}

// The pixels of slots, and which of them failed.
struct Unpacked {
  std::vector<uint8_t> pixels, failed;
};

// `unpack`: unpack_jpegs_cpu(), or a like function. Each piece of memory is allocated alone, so
// that AddressSanitizer sees every access outside.
template <class Unpack>
Unpacked unpack_slots(const Unpack& unpack, std::span<const std::byte> slots,
                      std::vector<uint8_t> packed, const ImageSize& size) {
  const std::vector<std::byte> in(slots.begin(), slots.end());
  const auto count = int64_t(packed.size());
  std::vector<uint8_t> scratch(size_t(unpack_teams(count)) * unpack_scratch_bytes(size), 0xa5);
  Unpacked result{std::vector<uint8_t>(slots.size(), 0x5a), std::vector<uint8_t>(packed.size(), 7)};
  unpack(UnpackArguments{.slots = in.data(),
                         .packed = packed.data(),
                         .count = count,
                         .size = size,
                         .scratch = scratch.data(),
                         .out = result.pixels.data(),
                         .failed = result.failed.data()});
  return result;
}

inline Unpacked unpack_slot(std::span<const std::byte> slot, const ImageSize& size) {
  return unpack_slots(unpack_jpegs_cpu, slot, {1}, size);
}

// One sample's slot, and the pixels that read() makes of it.
struct PackedSample {
  size_t bytes = 0;  // 0: it could not be packed
  std::vector<std::byte> slot;
  std::vector<uint8_t> expected;
};

template <class Source>
PackedSample pack_sample(FastDecoder& decoder, const Source& source,
                         const SampleTransform& transform, const ImageSize& size) {
  PackedSample sample;
  sample.slot.assign(slot_bytes(size), std::byte{0xee});
  sample.expected.resize(slot_bytes(size));
  EXPECT_TRUE(decoder.open(source, "x"));
  sample.bytes = decoder.pack("x", transform, size, sample.slot);
  // After 0 the image must still be open.
  if (sample.bytes > 0) decoder.open(source, "x");
  EXPECT_TRUE(
      decoder.read("x", transform, size, {}, reinterpret_cast<std::byte*>(sample.expected.data())));
  return sample;
}

inline PackedJpeg header_of(const std::byte* slot) {
  PackedJpeg header;
  std::memcpy(&header, slot, sizeof header);
  return header;
}
inline PackedJpeg header_of(const PackedSample& sample) {
  return header_of(sample.slot.data());
}

// A batch as a loader writes it: packed samples of all kinds beside decoded ones.
struct MixedBatch {
  ImageSize size{90, 104};
  std::vector<std::byte> slots;
  std::vector<uint8_t> packed, expected;

  std::byte* slot(size_t i) { return slots.data() + i * slot_bytes(size); }
  // Puts a marker into the entropy-coded bytes of a packed sample.
  void damage(size_t i) {
    const PackedJpeg header = header_of(slot(i));
    std::fill_n(slot(i) + header.data_at + header.data_bytes / 2, 8, std::byte{0xff});
    std::fill_n(expected.begin() + ptrdiff_t(i * slot_bytes(size)), slot_bytes(size), uint8_t{0});
  }

  explicit MixedBatch(int count) {
    FastDecoder decoder;
    for (int i = 0; i < count; ++i) {
      const int width = 200 + i, height = 150 - i;
      const SplitFile file =
          split_file(encode_as(test_picture(width, height), kPackedKinds[i % 4], 50), 4);
      SegmentedJpeg jpeg;
      jpeg.open(file.bytes, width, height, "x");
      const PackedSample sample =
          pack_sample(decoder, jpeg, {{i, 2 * i, 180 - i, 120 - i}, 0, 0, i % 2 == 1}, size);
      EXPECT_GT(sample.bytes, 0u);
      const bool decoded = i % 5 == 3;
      const auto bytes = decoded ? std::as_bytes(std::span(sample.expected))
                                 : std::span<const std::byte>(sample.slot);
      packed.push_back(decoded ? 0 : 1);
      slots.insert(slots.end(), bytes.begin(), bytes.end());
      expected.insert(expected.end(), sample.expected.begin(), sample.expected.end());
    }
  }
};

}  // namespace saturate::testing
