// Packed JPEGs: making them, and unpacking them within memory of exactly their size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "data/batch_room.h"
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

// The pixels of samples, as bytes, and which of them failed.
struct Unpacked {
  std::vector<uint8_t> pixels, failed;
};

// `unpack`: unpack_jpegs_cpu(), or a like function. Each piece of memory is allocated alone, so
// that AddressSanitizer sees every access outside.
template <class Unpack>
Unpacked unpack_places(const Unpack& unpack, std::span<const std::byte> memory,
                       const std::vector<PackedPlace>& places, const ImageSize& size,
                       const PixelFormat& format = {}, bool planar = false) {
  const std::vector<std::byte> in(memory.begin(), memory.end());
  const size_t count = places.size();
  std::vector<uint8_t> scratch(size_t(unpack_teams(int64_t(count))) * unpack_scratch_bytes(size),
                               0xa5);
  Unpacked result{std::vector<uint8_t>(count * pixel_bytes(size) * bytes_of(format.type), 0x5a),
                  std::vector<uint8_t>(count, 7)};
  unpack(UnpackArguments{.memory = in.data(),
                         .places = places.data(),
                         .count = int64_t(count),
                         .size = size,
                         .scratch = scratch.data(),
                         .out = result.pixels.data(),
                         .failed = result.failed.data(),
                         .format = format,
                         .planar = planar});
  return result;
}

inline Unpacked unpack_alone(std::span<const std::byte> packed, const ImageSize& size) {
  return unpack_places(unpack_jpegs_cpu, packed, {{0, uint32_t(packed.size())}}, size);
}

// One packed JPEG, and the pixels that read() makes of it.
struct PackedSample {
  std::vector<std::byte> packed;  // empty: it could not be packed
  std::vector<uint8_t> expected;
};

template <class Source>
PackedSample pack_sample(FastDecoder& decoder, const Source& source,
                         const SampleTransform& transform, const ImageSize& size) {
  PackedSample sample;
  sample.expected.resize(pixel_bytes(size));
  EXPECT_TRUE(decoder.open(source, "x"));
  sample.packed.assign(decoder.plan_pack(transform, size), std::byte{0xee});
  // If it is only planned, the image must still be open.
  if (!sample.packed.empty()) {
    decoder.pack(sample.packed.data());
    if constexpr (std::is_same_v<Source, SegmentedJpeg>) {
      EXPECT_TRUE(decoder.open_to_pack(source));
      std::vector<std::byte> again(decoder.plan_pack(transform, size), std::byte{0xee});
      decoder.pack(again.data());
      EXPECT_TRUE(again == sample.packed) << "libjpeg has read another header";
    }
    decoder.open(source, "x");
  }
  EXPECT_TRUE(
      decoder.read("x", transform, size, reinterpret_cast<std::byte*>(sample.expected.data())));
  return sample;
}

inline PackedJpeg header_of(const std::byte* packed) {
  PackedJpeg header;
  std::memcpy(&header, packed, sizeof header);
  return header;
}
inline PackedJpeg header_of(const PackedSample& sample) {
  return header_of(sample.packed.data());
}

// A batch as a loader writes it: packed samples of all kinds beside decoded ones.
struct MixedBatch {
  ImageSize size{90, 104};
  std::vector<std::byte> memory;
  std::vector<PackedPlace> places;
  std::vector<uint8_t> expected;

  std::byte* sample(size_t i) { return memory.data() + places[i].at * PackedPlace::kUnit; }
  // Puts a marker into the entropy-coded bytes of a packed sample.
  void damage(size_t i) {
    const PackedJpeg header = header_of(sample(i));
    std::fill_n(sample(i) + header.data_at + header.data_bytes / 2, 8, std::byte{0xff});
    std::fill_n(expected.begin() + ptrdiff_t(i * pixel_bytes(size)), pixel_bytes(size), uint8_t{0});
  }
  // The batch, that many times.
  void repeat(size_t copies) {
    const MixedBatch once = *this;
    for (size_t copy = 1; copy < copies; ++copy) {
      for (PackedPlace place : once.places) {
        place.at += uint32_t(memory.size() / PackedPlace::kUnit);
        places.push_back(place);
      }
      memory.insert(memory.end(), once.memory.begin(), once.memory.end());
      expected.insert(expected.end(), once.expected.begin(), once.expected.end());
    }
  }

  // Two packed JPEGs are larger than their pixels.
  explicit MixedBatch(int count) : memory(size_t(count) * whole_units(pixel_bytes(size))) {
    BatchRoom room;
    room.begin(memory.data(), size_t(count), pixel_bytes(size));
    ScanIndex index;
    FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
    for (int i = 0; i < count; ++i) {
      const bool large = i == 8 || i == 20, decoded = i % 5 == 3 && !large;
      const int width = 200 + i, height = 150 - i;
      const auto whole =
          encode_as(test_picture(width, height), kPackedKinds[i % 4], large ? 100 : 50);
      const SplitFile file = split_file(whole, 4);
      SegmentedJpeg jpeg;
      jpeg.open(file.bytes, width, height, "x");
      PackedSample from =
          pack_sample(decoder, jpeg, {{i, 2 * i, 180 - i, 120 - i}, 0, 0, i % 2 == 1}, size);
      if (i == 5 || i == 12) {
        const auto turned = with_marker(whole, 0xe1, exif(i == 5 ? 6 : 7));
        decoder.find_points(turned, "x");
        from = pack_sample(decoder, std::span<const std::byte>(turned),
                           {{2 * i, i, 120 - i, 180 - i}, 0, 0, i % 2 == 1}, size);
        // The flip undoes the first one's reversal.
        EXPECT_EQ(header_of(from).turn, i == 5 ? kPackedColumns : kPackedColumns | kPackedReversed);
      }
      EXPECT_FALSE(from.packed.empty());
      EXPECT_EQ(from.packed.size() > pixel_bytes(size), large) << from.packed.size();
      places.push_back(decoded ? room.take_pixels() : room.take(from.packed.size()).value());
      const auto bytes = decoded ? std::as_bytes(std::span(from.expected))
                                 : std::span<const std::byte>(from.packed);
      std::ranges::copy(bytes, sample(size_t(i)));
      expected.insert(expected.end(), from.expected.begin(), from.expected.end());
    }
  }
};

}  // namespace saturate::testing
