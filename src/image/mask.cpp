#include <cmath>
#include <cstdint>

#include "image/effect_pixel.h"
#include "saturate/data/effects.h"

namespace saturate {
namespace {

struct MaskPoint {
  int x, y;
};

bool inside(MaskPoint at, int width, int height) {
  return at.x >= 0 && at.x < width && at.y >= 0 && at.y < height;
}

// Maps output pixel `at` back to the cropped and resized image; false if it is outside.
bool before_effects(const EffectList& list, int size, MaskPoint& at) {
  for (int n = list.count - 1; n >= 0; --n) {
    if (list.effect[n].kind != EffectKind::kAffine) continue;
    const SourcePoint from = affine_place(list.effect[n].value, size, at.x, at.y);
    at = {static_cast<int>(std::nearbyint(from.x)), static_cast<int>(std::nearbyint(from.y))};
    if (!inside(at, size, size)) return false;
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
  const int size = options.size;
  const Box& crop = transform.crop;
  for (int y = 0; y < size; ++y)
    for (int x = 0; x < size; ++x, ++out) {
      *out = outside;
      MaskPoint at{x, y};
      if (!before_effects(list, size, at)) continue;
      if (transform.flip) at.x = size - 1 - at.x;
      at = {padded_index(at.x + transform.shift_x, size, options.pad_mode),
            padded_index(at.y + transform.shift_y, size, options.pad_mode)};
      if (at.x < 0 || at.y < 0) continue;
      at = {crop.x + nearest(at.x, crop.width, size), crop.y + nearest(at.y, crop.height, size)};
      *out = mask.classes[ptrdiff_t{at.y} * mask.width + at.x];
    }
}

}  // namespace saturate
