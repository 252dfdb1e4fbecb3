#include "saturate/data/effects.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/effect_kernels.h"
#include "image/finish_passes.h"

namespace saturate {
namespace {

// One CPU thread, using the vectorised kernels where available.
struct CpuTeam : LoneTeam {};

// Chunks do not speed up a CPU.
void add_levels(const CpuTeam&, const uint8_t* in, int values, uint32_t histogram[3][256]) {
  for (int i = 0; i < values; i += 3)
    for (int c = 0; c < 3; ++c) ++histogram[c][in[i + c]];
}

void map_levels(const CpuTeam&, const uint8_t table[3][256], int values, uint8_t* image) {
  for (int i = 0; i < values; i += 3)
    for (int c = 0; c < 3; ++c) image[i + c] = table[c][image[i + c]];
}

void run_recolour(CpuTeam&, const Effect& effect, int pixels, uint8_t* image) {
  effect_kernels().recolour(effect, image, size_t(pixels));
}

void run_affine(CpuTeam&, const Effect& effect, const ImageSize& size, const uint8_t* in,
                uint8_t* out) {
  for (int y = 0; y < size.height; ++y, out += ptrdiff_t{size.width} * 3)
    effect_kernels().affine_row(effect.value, in, size, y, out);
}

void run_sharpness(CpuTeam&, const Effect& effect, const ImageSize& size, const uint8_t* in,
                   uint8_t* out) {
  const int width = size.width, height = size.height;
  const size_t pitch = size_t(width) * 3;
  std::memcpy(out, in, pitch);  // keeps the border
  for (int y = 1; y < height - 1; ++y) {
    in += pitch, out += pitch;
    std::memcpy(out, in, 3);
    if (width > 2) effect_kernels().sharpen(in + 3, width, effect.value[0], pitch - 6, out + 3);
    std::memcpy(out + pitch - 3, in + pitch - 3, 3);
  }
  if (height > 1) std::memcpy(out + pitch, in + pitch, pitch);
}

// Only pixels near the left and right border, where the image is reflected, go one by one.
void run_blur(CpuTeam&, const Effect& effect, const ImageSize& size, const uint8_t* in,
              EffectState& state, float* rows, uint8_t* out) {
  const int width = size.width, pitch = width * 3;
  const int radius = blur_radius(effect.value[0], size.shorter()), taps = 2 * radius + 1;
  const int inner = std::max(pitch - 2 * radius * 3, 0);
  make_blur_weights(effect.value[0], radius, state.blur);
  for (int y = 0; y < size.height; ++y) {
    const uint8_t* from = in + ptrdiff_t{y} * pitch;
    float* to = rows + ptrdiff_t{y} * pitch;
    for (int x = 0; x < width; x = x + 1 == radius ? std::max(width - radius, radius) : x + 1)
      for (int c = 0; c < 3; ++c)
        to[x * 3 + c] = blurred_across(state.blur, radius, from + c, width, x);
    effect_kernels().blur_across(state.blur, taps, from, size_t(inner), to + radius * 3);
  }
  const float* line[2 * kMaxBlurRadius + 1];
  for (int y = 0; y < size.height; ++y, out += pitch) {
    for (int k = 0; k < taps; ++k)
      line[k] = rows + ptrdiff_t{mirrored(y + k - radius, size.height)} * pitch;
    effect_kernels().blur_down(state.blur, taps, line, size_t(pitch), out);
  }
}

}  // namespace

void apply_effects(const EffectList& list, const ImageSize& size, EffectScratch& scratch,
                   uint8_t* pixels) {
  if (list.count == 0) return;
  bool blurs = false, moves = false;
  for (int i = 0; i < list.count; ++i) {
    blurs |= list.effect[i].kind == EffectKind::kBlur;
    moves |= needs_neighbours(list.effect[i].kind);
  }
  const size_t values = size_t(size.area()) * 3;
  if (moves && scratch.pixels.size() < values) scratch.pixels.resize(values);
  if (blurs && scratch.rows.size() < values) scratch.rows.resize(values);
  CpuTeam team;
  EffectState state;
  const uint8_t* result =
      run_effects(team, list, size, state, pixels, scratch.pixels.data(), scratch.rows.data());
  if (result != pixels) std::memcpy(pixels, result, values);
}

void finish_batch_cpu(const FinishArguments& batch) {
  LoneTeam team;
  FinishState state;
  for (int64_t i = 0; i < batch.count; ++i)
    finish_image(team, batch, i, /*part=*/0, /*parts=*/1, state);
}

namespace {

struct MaskPoint {
  int x, y;
};

// Maps output pixel `at` back to the cropped and resized image; false if it is outside.
bool before_effects(const EffectList& list, const ImageSize& size, MaskPoint& at) {
  for (int n = list.count - 1; n >= 0; --n) {
    if (list.effect[n].kind != EffectKind::kAffine) continue;
    const SourcePoint from = affine_place(list.effect[n].value, size, at.x, at.y);
    at = {static_cast<int>(std::nearbyint(from.x)), static_cast<int>(std::nearbyint(from.y))};
    if (!is_inside(at.x, at.y, size)) return false;
  }
  return true;
}

// As torch's interpolate(mode = "nearest").
int nearest(int i, int in, int out) {
  return static_cast<int>(int64_t{i} * in / out);
}

}  // namespace

void transform_mask(const AugmentOptions& options, const SampleTransform& transform,
                    const EffectList& list, const Mask& mask, uint8_t outside, uint8_t* out) {
  const ImageSize& size = options.size;
  const Box &crop = transform.crop, filled = transform.filled(size);
  for (int y = 0; y < size.height; ++y)
    for (int x = 0; x < size.width; ++x, ++out) {
      *out = outside;
      MaskPoint at{x, y};
      if (!before_effects(list, size, at)) continue;
      if (transform.flip) at.x = size.width - 1 - at.x;
      at = {padded_index(at.x + transform.shift_x, size.width, options.pad_mode) - filled.x,
            padded_index(at.y + transform.shift_y, size.height, options.pad_mode) - filled.y};
      if (!is_inside(at.x, at.y, {filled.height, filled.width})) continue;
      at = {crop.x + nearest(at.x, crop.width, filled.width),
            crop.y + nearest(at.y, crop.height, filled.height)};
      *out = mask.classes[ptrdiff_t{at.y} * mask.width + at.x];
    }
}

}  // namespace saturate
