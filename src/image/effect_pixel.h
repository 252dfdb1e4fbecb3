// Effects on one value or pixel, on levels 0..255 in float: used by both CPU and GPU, and compared
// in tests with torchvision's functions on float images. Compiled by nvcc too, without fused
// multiply-add, so that both give the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "saturate/data/pixel.h"

namespace saturate {

struct Rgb {
  float r, g, b;
};

// fminf() and fmaxf() are function calls on a CPU, because of their NaN handling.
SATURATE_HOST_DEVICE inline float least(float a, float b) {
  return a < b ? a : b;
}
SATURATE_HOST_DEVICE inline float greatest(float a, float b) {
  return a > b ? a : b;
}

SATURATE_HOST_DEVICE inline float clamp_level(float value) {
  return least(greatest(value, 0.0f), 255.0f);
}

// Rounds halves up, unlike torch.round(), which rounds to even.
SATURATE_HOST_DEVICE inline uint8_t to_level(float value) {
  return static_cast<uint8_t>(clamp_level(value) + 0.5f);
}

SATURATE_HOST_DEVICE inline float blended(float value, float other, float factor) {
  return clamp_level(value * factor + other * (1.0f - factor));
}

SATURATE_HOST_DEVICE inline float grey_of(float r, float g, float b) {
  return r * 0.2989f + g * 0.587f + b * 0.114f;
}

SATURATE_HOST_DEVICE inline Rgb with_saturation(Rgb in, float factor) {
  const float grey = grey_of(in.r, in.g, in.b);
  return {blended(in.r, grey, factor), blended(in.g, grey, factor), blended(in.b, grey, factor)};
}

// Rotates the hue by `turns`, keeping the largest and smallest channel. For a hue h in sixths,
// channel n is largest - range * clamp(min(k, 4 - k), 0, 1), k = (n + h) mod 6, n = 5, 3, 1 for r,
// g, b: the closed form of HSV to RGB.
SATURATE_HOST_DEVICE inline Rgb with_hue(Rgb in, float turns) {
  const float high = greatest(in.r, greatest(in.g, in.b)), low = least(in.r, least(in.g, in.b));
  const float range = high - low;
  const float inverse = range > 0.0f ? 1.0f / range : 0.0f;
  float hue = (in.g - in.b) * inverse;
  hue = high == in.r   ? hue
        : high == in.g ? (in.b - in.r) * inverse + 2.0f
                       : (in.r - in.g) * inverse + 4.0f;
  hue += turns * 6.0f + 6.0f;  // 2 to 14
  const auto channel = [&](float n) {
    float k = n + hue;
    k -= 6.0f * static_cast<float>(static_cast<int>(k * (1.0f / 6.0f)));
    const float slope = least(k, 4.0f - k);
    return high - range * least(greatest(slope, 0.0f), 1.0f);
  };
  return {channel(5.0f), channel(3.0f), channel(1.0f)};
}

// The source position of output pixel (x, y) under `matrix` of an EffectKind::kAffine.
struct SourcePoint {
  float x, y;  // pixels from the first pixel's centre
};
SATURATE_HOST_DEVICE inline SourcePoint affine_place(const float* matrix, const ImageSize& size,
                                                     int x, int y) {
  const float middle_x = static_cast<float>(size.width - 1) * 0.5f;
  const float middle_y = static_cast<float>(size.height - 1) * 0.5f;
  const float dx = static_cast<float>(x) - middle_x, dy = static_cast<float>(y) - middle_y;
  return {matrix[0] * dx + matrix[1] * dy + matrix[2] + middle_x,
          matrix[3] * dx + matrix[4] * dy + matrix[5] + middle_y};
}

// floor(), which is a function call without a dedicated CPU instruction.
SATURATE_HOST_DEVICE inline int floor_to_int(float value) {
  const int towards_zero = static_cast<int>(value);
  return towards_zero - (value < static_cast<float>(towards_zero) ? 1 : 0);
}

// Bilinear sample at a position; pixel_at(x, y) points to a pixel's levels, null is black.
template <class PixelAt>
SATURATE_HOST_DEVICE inline Rgb blend_pixels_at(const PixelAt& pixel_at, SourcePoint at) {
  const int x = floor_to_int(at.x), y = floor_to_int(at.y);
  const float right = at.x - static_cast<float>(x), below = at.y - static_cast<float>(y);
  const uint8_t *p00 = pixel_at(x, y), *p01 = pixel_at(x + 1, y), *p10 = pixel_at(x, y + 1),
                *p11 = pixel_at(x + 1, y + 1);
  const auto channel = [&](int c) {
    const auto level = [c](const uint8_t* pixel) {
      return pixel == nullptr ? 0.0f : static_cast<float>(pixel[c]);
    };
    const float top = level(p00) * (1.0f - right) + level(p01) * right;
    const float bottom = level(p10) * (1.0f - right) + level(p11) * right;
    return top * (1.0f - below) + bottom * below;
  };
  return {channel(0), channel(1), channel(2)};
}

SATURATE_HOST_DEVICE inline bool is_inside(int x, int y, const ImageSize& size) {
  return x >= 0 && x < size.width && y >= 0 && y < size.height;
}

// Bilinear sample at a position of `in` [size.height, size.width, 3]; outside is black.
SATURATE_HOST_DEVICE inline Rgb sample_bilinear(const uint8_t* in, const ImageSize& size,
                                                SourcePoint at) {
  const auto pixel_at = [&](int x, int y) {
    return is_inside(x, y, size) ? in + (static_cast<ptrdiff_t>(y) * size.width + x) * 3 : nullptr;
  };
  return blend_pixels_at(pixel_at, at);
}

SATURATE_HOST_DEVICE inline void store_levels(Rgb value, uint8_t* out) {
  out[0] = to_level(value.r);
  out[1] = to_level(value.g);
  out[2] = to_level(value.b);
}

// Index `i` reflected at the centres of the edge pixels. REQUIRES: |distance| < size.
SATURATE_HOST_DEVICE inline int mirrored(int i, int size) {
  return i < 0 ? -i : i < size ? i : 2 * (size - 1) - i;
}

constexpr int kMaxBlurRadius = 30;

// Radius of a Gaussian truncated at three standard deviations, limited by the reflection.
SATURATE_HOST_DEVICE inline int blur_radius(float sigma, int size) {
  const int wanted = static_cast<int>(ceilf(3.0f * sigma));
  const int most = size - 1 < kMaxBlurRadius ? size - 1 : kMaxBlurRadius;
  return wanted < most ? wanted : most;
}

// weight [2 * radius + 1], normalised to sum 1.
SATURATE_HOST_DEVICE inline void make_blur_weights(float sigma, int radius, float* weight) {
  float sum = 0.0f;
  for (int k = -radius; k <= radius; ++k) {
    const float z = static_cast<float>(k) / sigma;
    weight[k + radius] = expf(-0.5f * z * z);
    sum += weight[k + radius];
  }
  for (int k = 0; k <= 2 * radius; ++k) weight[k] /= sum;
}

// Pixel x of a row of `size` pixels; `row` points to the channel of the first.
SATURATE_HOST_DEVICE inline float blurred_across(const float* weight, int radius,
                                                 const uint8_t* row, int size, int x) {
  float sum = 0.0f;
  for (int k = -radius; k <= radius; ++k)
    sum += weight[k + radius] * static_cast<float>(row[mirrored(x + k, size) * 3]);
  return sum;
}

// `in` points to a channel of a pixel inside the border of an image of `width` pixels a row.
SATURATE_HOST_DEVICE inline float sharpened(const uint8_t* in, int width, float factor) {
  const ptrdiff_t row = static_cast<ptrdiff_t>(width) * 3;
  int sum = 4 * in[0];  // the centre weighs 5 of 13
  for (int dy = -1; dy <= 1; ++dy)
    for (int dx = -1; dx <= 1; ++dx) sum += in[dy * row + dx * 3];
  const float value = static_cast<float>(in[0]);
  const float smooth = static_cast<float>(sum) * (1.0f / 13.0f);
  return clamp_level(value + (1.0f - factor) * (smooth - value));
}

}  // namespace saturate
