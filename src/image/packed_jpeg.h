// A sample's JPEG on its way to a GPU: instead of pixels, a loader writes the entropy-coded
// segments that the crop needs, with tables and filters, so that decoding needs no libjpeg. One
// text decodes it on the CPU and on the GPU (image/unpack_passes.h), bit for bit as
// FastDecoder::read() does.
//
// FastDecoder::pack() writes it, data/batch_room.h finds a place for it, and image/packed_layout.h
// says where everything is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "saturate/data/effects.h"
#include "saturate/data/image.h"
#include "saturate/data/pixel.h"

namespace saturate {

SATURATE_HOST_DEVICE constexpr size_t pixel_bytes(const ImageSize& size) {
  return size_t(size.area()) * 3;
}

// A batch to decode. All memory is on the device.
struct UnpackArguments {
  // uint8 pixels and packed JPEGs, aligned to 4 bytes.
  const std::byte* memory = nullptr;
  const PackedPlace* places = nullptr;  // [count], all within `memory`
  int64_t count = 0;
  ImageSize size;
  // [unpack_teams(count)][unpack_scratch_bytes(size)], aligned to 16 bytes.
  uint8_t* scratch = nullptr;
  // [count][size.height][size.width][3] of format.type or, if `planar`, [count][3][size.height]
  // [size.width]; not in `memory`. Aligned to a value.
  uint8_t* out = nullptr;
  uint8_t* failed = nullptr;  // [count]; set to 1 if the data are irregular, else to 0
  PixelFormat format = {};    // of `out`
  bool planar = false;
};

// Teams that decode a batch; each decodes one image after another.
SATURATE_HOST_DEVICE constexpr int unpack_teams(int64_t count) {
  constexpr int kMostTeams = 528;  // four for each of an H200's 132 multiprocessors
  return count < kMostTeams ? static_cast<int>(count) : kMostTeams;
}

// Decoded rows of one image: those of a few output rows at least, of most photographs all.
// FastDecoder::plan_pack() refuses a crop that needs more.
SATURATE_HOST_DEVICE constexpr size_t unpack_scratch_bytes(const ImageSize& size) {
  constexpr size_t kBytesForAPixel = 8, kLeast = 1 << 16;
  return (size_t(size.area()) * kBytesForAPixel + kLeast) / 16 * 16;
}

// One team; uses the scratch memory of the first. Data may be anything: a packed JPEG that is
// irregular sets `failed`, and its pixels to black.
void unpack_jpegs_cpu(const UnpackArguments& batch);
// Enqueues the work on `stream`, a cudaStream_t. Fails with kRun if that is refused.
void unpack_jpegs_cuda(const UnpackArguments& batch, void* stream);

}  // namespace saturate
