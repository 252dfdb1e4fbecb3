#include <algorithm>

#include "image/effect_kernels.h"
#include "image/effect_passes.h"

namespace saturate {
namespace {

constexpr size_t kChunk = 64;  // sums computed together, which the compiler vectorises

// out(i, the weighted sum over k < taps of line(k)[i]), i < n.
template <class Line, class Store>
void weigh(const float* weight, int taps, size_t n, const Line& line, const Store& store) {
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t count = std::min(kChunk, n - begin);
    float sum[kChunk] = {};
    for (int k = 0; k < taps; ++k) {
      const auto* values = line(k) + begin;
      for (size_t i = 0; i < count; ++i) sum[i] += weight[k] * static_cast<float>(values[i]);
    }
    for (size_t i = 0; i < count; ++i) store(begin + i, sum[i]);
  }
}

void recolour_pixels(const Effect& effect, uint8_t* pixels, size_t n) {
  for (size_t i = 0; i < n; ++i) recolour(effect, pixels + i * 3);
}

void affine_row(const float* matrix, const uint8_t* in, const ImageSize& size, int y,
                uint8_t* out) {
  for (int x = 0; x < size.width; ++x, out += 3)
    store_levels(sample_bilinear(in, size, affine_place(matrix, size, x, y)), out);
}

void sharpen(const uint8_t* in, int width, float factor, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = to_level(sharpened(in + i, width, factor));
}

void blur_across(const float* weight, int taps, const uint8_t* in, size_t n, float* out) {
  weigh(
      weight, taps, n, [&](int k) { return in + k * 3; },
      [&](size_t i, float sum) { out[i] = sum; });
}

void blur_down(const float* weight, int taps, const float* const* rows, size_t n, uint8_t* out) {
  weigh(
      weight, taps, n, [&](int k) { return rows[k]; },
      [&](size_t i, float sum) { out[i] = to_level(sum); });
}

}  // namespace

const EffectKernels& plain_effect_kernels() {
  static const EffectKernels kernels{"plain", recolour_pixels, affine_row,
                                     sharpen, blur_across,     blur_down};
  return kernels;
}

}  // namespace saturate
