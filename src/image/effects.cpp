#include "saturate/effects.h"

#include <algorithm>
#include <cstring>

#include "image/effect_passes.h"

namespace saturate {
namespace {

constexpr int kChunk = 64;  // sums side by side, which the compiler computes several at a time

// out[i] = the weighted sum over k of line[k][i], i < count; `line(k)` is where line k begins. Term
// by term as run_blur has it, so that the bits are the same.
template <class Line, class Store>
void blur_values(const float* weight, int taps, int count, const Line& line, const Store& store) {
  for (int begin = 0; begin < count; begin += kChunk) {
    const int n = std::min(kChunk, count - begin);
    float sum[kChunk] = {};
    for (int k = 0; k < taps; ++k) {
      const auto* values = line(k) + begin;
      for (int i = 0; i < n; ++i) sum[i] += weight[k] * static_cast<float>(values[i]);
    }
    for (int i = 0; i < n; ++i) store(begin + i, sum[i]);
  }
}

// One CPU thread, with passes of its own where those for any team are slow.
struct CpuTeam : LoneTeam {};

// Only the pixels near the left and right border, which see the image mirrored, go one by one.
void run_blur(CpuTeam&, const Effect& effect, int size, const uint8_t* in, EffectState& state,
              float* rows, uint8_t* out) {
  const int radius = blur_radius(effect.value[0], size), taps = 2 * radius + 1, pitch = size * 3;
  const int inner = std::max(pitch - 2 * radius * 3, 0);
  make_blur_weights(effect.value[0], radius, state.blur);
  for (int y = 0; y < size; ++y, in += pitch, rows += pitch) {
    for (int x = 0; x < size; x = x + 1 == radius ? std::max(size - radius, radius) : x + 1)
      for (int c = 0; c < 3; ++c)
        rows[x * 3 + c] = blurred_across(state.blur, radius, in + c, size, x);
    blur_values(
        state.blur, taps, inner, [&](int k) { return in + k * 3; },
        [&](int i, float sum) { rows[radius * 3 + i] = sum; });
  }
  rows -= ptrdiff_t{size} * pitch;
  for (int y = 0; y < size; ++y, out += pitch)
    blur_values(
        state.blur, taps, pitch,
        [&](int k) { return rows + ptrdiff_t{mirrored(y + k - radius, size)} * pitch; },
        [&](int i, float sum) { out[i] = to_level(sum); });
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

void finish_batch_cpu(const FinishBatch& batch) {
  LoneTeam team;
  EffectState state;
  for (int64_t i = 0; i < batch.count; ++i) finish_image(team, batch, i, state);
}

}  // namespace saturate
