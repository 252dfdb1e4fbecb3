// The last steps of unpacking (image/unpack_passes.h): decoded rows to output pixels, as
// fast_plain.cpp computes them, in the batch's type and layout. Also the state that all steps
// share. Compiled by nvcc too.
#pragma once

#include "image/fast_kernels.h"
#include "image/finish_passes.h"
#include "image/unpack_bits.h"

namespace saturate {

// A team's memory.
struct UnpackState {
  alignas(kWidestAccess) uint8_t blended[kBlendedBytes];  // rows of samples
  PackedJpeg packed;
  UnpackPlan plan;
  UnpackCodes codes[kPackedTables];
  uint8_t order[kOrderPlaces];
  uint32_t failures;
};

// An image and where it goes.
struct UnpackTask {
  const std::byte* from;
  uint32_t bytes;  // of a packed JPEG
  ImageSize size;  // of the output; unpack_jpeg() swaps it if columns are decoded as rows
  uint8_t* scratch;
  const UnpackArguments& batch;
  uint8_t* out;
};

// The output index of a pixel.
SATURATE_HOST_DEVICE inline int64_t pixel_place(const ImageSize& size, uint8_t turn, int x, int y) {
  if (turn & kPackedReversed) y = size.height - 1 - y;
  return turn & kPackedColumns ? int64_t{x} * size.height + y : int64_t{y} * size.width + x;
}

template <PixelType kType>
SATURATE_HOST_DEVICE inline void store_channels(const Normalize& by, const uint8_t* rgb,
                                                int64_t first, int step, uint8_t* out) {
  for (int c = 0; c < 3; ++c) store_finished<kType>(by, c, rgb[c], out, first + int64_t{c} * step);
}

// `place`: the pixel's output index.
SATURATE_HOST_DEVICE inline void store_pixel(const UnpackTask& task, int64_t place,
                                             const uint8_t* rgb) {
  const Normalize& by = task.batch.format.normalize;
  const PixelType type = task.batch.format.type;
  const bool planar = task.batch.planar;
  const int64_t first = planar ? place : place * 3;
  const int step = planar ? task.size.area() : 1;
  if (type == PixelType::kUint8)
    store_channels<PixelType::kUint8>(by, rgb, first, step, task.out);
  else if (type == PixelType::kBfloat16)
    store_channels<PixelType::kBfloat16>(by, rgb, first, step, task.out);
  else if (type == PixelType::kFloat16)
    store_channels<PixelType::kFloat16>(by, rgb, first, step, task.out);
  else
    store_channels<PixelType::kFloat32>(by, rgb, first, step, task.out);
}

// Four columns of output row y of a plane, before they are resized across, as blend_rows().
SATURATE_HOST_DEVICE inline Piece<4> blended_word(const UnpackTask& task, const UnpackState& state,
                                                  const UnpackPlane& plane, int y, int word) {
  const AxisView down = view_axis(task.from, state.packed.down_axis[plane.axis], task.size.height);
  const uint8_t* const ring = task.scratch + plane.at + plane.first + word * 4;
  int row = down.first[y] % plane.ring_rows;
  if (down.taps == 1) return load_piece<4>(ring + int64_t{row} * plane.pitch);
  const uint16_t* const weight = down.weight + int64_t{y} * down.taps;
  uint32_t sum[4];
  for (uint32_t& one : sum) one = static_cast<uint32_t>(fast_bias(down.taps));
  for (int k = 0; k < down.taps; ++k) {
    const auto from = load_piece<4>(ring + int64_t{row} * plane.pitch);
    const uint32_t by = weight[k];
    for (int i = 0; i < 4; ++i) sum[i] += (byte_of(from, i) * by) >> 8;
    if (++row == plane.ring_rows) row = 0;
  }
  Piece<4> out{};
  for (int i = 0; i < 4; ++i) out.word[0] |= (sum[i] >> 8 & 255) << 8 * i;
  return out;
}

// Column x of a blended row, as gather_row().
SATURATE_HOST_DEVICE inline int gathered_level(const UnpackTask& task, const UnpackState& state,
                                               const UnpackPlane& plane, const uint8_t* row,
                                               int x) {
  const AxisView across =
      view_axis(task.from, state.packed.across_axis[plane.axis], task.size.width);
  const uint8_t* const from = row + plane.row_at + (across.first[x] - plane.first);
  const uint16_t* const weight = across.weight + int64_t{x} * across.taps;
  uint32_t sum = static_cast<uint32_t>(fast_bias(across.taps));
  for (int k = 0; k < across.taps; ++k) sum += (uint32_t{from[k]} * weight[k]) >> 8;
  return static_cast<int>(sum >> 8 & 255);
}

SATURATE_HOST_DEVICE inline const UnpackPlane& plane_of_word(const UnpackPlan& plan, int word) {
  int c = 0;
  while (c + 1 < plan.planes && word * 4 >= plan.plane[c + 1].row_at) ++c;
  return plan.plane[c];
}

// Output rows [first, end), whose decoded rows are in the scratch memory.
template <class Team>
SATURATE_HOST_DEVICE void resize_rows(const Team& team, const UnpackTask& task, UnpackState& state,
                                      int first, int end) {
  const UnpackPlan& plan = state.plan;
  const int row_words = plan.row_bytes / 4, width = task.size.width;
  const int together = kBlendedBytes / plan.row_bytes;
  for (int begin = first; begin < end; begin += together) {
    const int count = end - begin < together ? end - begin : together;
    for (int i = team.first(); i < count * row_words; i += team.step()) {
      const int word = i % row_words;
      const UnpackPlane& plane = plane_of_word(plan, word);
      store_piece(blended_word(task, state, plane, begin + i / row_words, word - plane.row_at / 4),
                  state.blended + i * 4);
    }
    team.wait();
    for (int i = team.first(); i < count * width; i += team.step()) {
      const int x = i % width, y = i / width;
      const uint8_t* const row = state.blended + y * plan.row_bytes;
      int level[3] = {0, 128, 128};
      for (int c = 0; c < plan.planes; ++c)
        level[c] = gathered_level(task, state, plan.plane[c], row, x);
      uint8_t rgb[3];
      store_rgb(level[0], level[1], level[2], rgb);
      store_pixel(task, pixel_place(task.size, state.packed.turn, x, begin + y), rgb);
    }
    team.wait();
  }
}

}  // namespace saturate
