#include "saturate/data/effects.h"

#include <algorithm>
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

void run_affine(CpuTeam&, const Effect& effect, int size, const uint8_t* in, uint8_t* out) {
  for (int y = 0; y < size; ++y, out += ptrdiff_t{size} * 3)
    effect_kernels().affine_row(effect.value, in, size, y, out);
}

void run_sharpness(CpuTeam&, const Effect& effect, int size, const uint8_t* in, uint8_t* out) {
  const size_t pitch = size_t(size) * 3;
  std::memcpy(out, in, pitch);  // keeps the border
  for (int y = 1; y < size - 1; ++y) {
    in += pitch, out += pitch;
    std::memcpy(out, in, 3);
    if (size > 2) effect_kernels().sharpen(in + 3, size, effect.value[0], pitch - 6, out + 3);
    std::memcpy(out + pitch - 3, in + pitch - 3, 3);
  }
  if (size > 1) std::memcpy(out + pitch, in + pitch, pitch);
}

// Only pixels near the left and right border, where the image is reflected, go one by one.
void run_blur(CpuTeam&, const Effect& effect, int size, const uint8_t* in, EffectState& state,
              float* rows, uint8_t* out) {
  const int radius = blur_radius(effect.value[0], size), taps = 2 * radius + 1, pitch = size * 3;
  const int inner = std::max(pitch - 2 * radius * 3, 0);
  make_blur_weights(effect.value[0], radius, state.blur);
  for (int y = 0; y < size; ++y) {
    const uint8_t* from = in + ptrdiff_t{y} * pitch;
    float* to = rows + ptrdiff_t{y} * pitch;
    for (int x = 0; x < size; x = x + 1 == radius ? std::max(size - radius, radius) : x + 1)
      for (int c = 0; c < 3; ++c)
        to[x * 3 + c] = blurred_across(state.blur, radius, from + c, size, x);
    effect_kernels().blur_across(state.blur, taps, from, size_t(inner), to + radius * 3);
  }
  const float* line[2 * kMaxBlurRadius + 1];
  for (int y = 0; y < size; ++y, out += pitch) {
    for (int k = 0; k < taps; ++k)
      line[k] = rows + ptrdiff_t{mirrored(y + k - radius, size)} * pitch;
    effect_kernels().blur_down(state.blur, taps, line, size_t(pitch), out);
  }
}

}  // namespace

void apply_effects(const EffectList& list, int size, EffectScratch& scratch, uint8_t* pixels) {
  if (list.count == 0) return;
  bool blurs = false, moves = false;
  for (int i = 0; i < list.count; ++i) {
    blurs |= list.effect[i].kind == EffectKind::kBlur;
    moves |= needs_neighbours(list.effect[i].kind);
  }
  const size_t values = size_t(size) * size_t(size) * 3;
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

}  // namespace saturate
