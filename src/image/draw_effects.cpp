// Draws the effects of a sample in the same way as torchvision's RandomAffine, ColorJitter,
// RandomGrayscale, GaussianBlur, GaussianNoise and RandomErasing.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "image/policies.h"
#include "saturate/data/augment.h"
#include "saturate/data/effects.h"

namespace saturate {
namespace {

double symmetric(RandomStream& random, double range) {
  return random.uniform(-range, range);
}

bool has_affine(const AugmentOptions& options) {
  return options.rotate > 0 || options.translate > 0 || options.zoom > 0 || options.shear > 0;
}

// A factor around 1, not below 0.
void draw_factor(double range, EffectKind kind, RandomUse use, const SampleKey& key,
                 EffectList& list) {
  if (range == 0) return;
  RandomStream random = key.stream(use);
  list.add(kind, static_cast<float>(random.uniform(std::max(0.0, 1 - range), 1 + range)));
}

void draw_colour(const AugmentOptions& options, const SampleKey& key, EffectList& list) {
  draw_factor(options.brightness, EffectKind::kBrightness, RandomUse::kBrightness, key, list);
  draw_factor(options.contrast, EffectKind::kContrast, RandomUse::kContrast, key, list);
  draw_factor(options.saturation, EffectKind::kSaturation, RandomUse::kSaturation, key, list);
  if (options.hue > 0) {
    RandomStream random = key.stream(RandomUse::kHue);
    list.add(EffectKind::kHue, static_cast<float>(symmetric(random, options.hue)));
  }
  if (options.grey > 0 && key.stream(RandomUse::kGrey).bernoulli(options.grey))
    list.add(EffectKind::kGrey);
}

void draw_blur(const AugmentOptions& options, const SampleKey& key, EffectList& list) {
  if (options.blur == 0) return;
  RandomStream random = key.stream(RandomUse::kBlur);
  if (!random.bernoulli(options.blur)) return;
  const double sigma = random.uniform(options.blur_sigma_min, options.blur_sigma_max);
  list.add(EffectKind::kBlur, static_cast<float>(sigma));
}

void draw_noise(const AugmentOptions& options, const SampleKey& key, EffectList& list) {
  if (options.gaussian_noise == 0) return;
  const uint32_t seed = key.stream(EffectKind::kNoise).next_u32();
  Effect& effect = list.add(EffectKind::kNoise, static_cast<float>(255 * options.gaussian_noise));
  effect.value[1] = static_cast<float>(seed & 0xffff);
  effect.value[2] = static_cast<float>(seed >> 16);
}

// RandomErasing.make_params: ten tries, then nothing. Ratios are height over width there.
std::optional<Box> erased_box(const AugmentOptions& options, RandomStream& random) {
  const ImageSize& size = options.size;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = double(size.height) * size.width *
                        random.uniform(options.erase_scale_min, options.erase_scale_max);
    const double ratio = std::exp(
        random.uniform(std::log(options.erase_ratio_min), std::log(options.erase_ratio_max)));
    const int width = static_cast<int>(std::nearbyint(std::sqrt(area / ratio)));
    const int height = static_cast<int>(std::nearbyint(std::sqrt(area * ratio)));
    if (width >= size.width || height >= size.height) continue;
    const int y = static_cast<int>(random.below(uint64_t(size.height - height) + 1));
    const int x = static_cast<int>(random.below(uint64_t(size.width - width) + 1));
    return Box{x, y, width, height};
  }
  return std::nullopt;
}

void draw_erase(const AugmentOptions& options, const SampleKey& key, EffectList& list) {
  if (options.erase == 0) return;
  RandomStream random = key.stream(RandomUse::kErase);
  if (!random.bernoulli(options.erase)) return;
  const auto box = erased_box(options, random);
  if (!box) return;
  Effect& effect = list.add(EffectKind::kErase);
  const int place[] = {box->x, box->y, box->width, box->height};
  for (int i = 0; i < 4; ++i) effect.value[i] = static_cast<float>(place[i]);
  const auto fill = mean_levels(options);
  for (size_t c = 0; c < 3; ++c) effect.value[4 + c] = fill[c];
}

}  // namespace

AffineSpec draw_affine(const AugmentOptions& options, const SampleKey& key) {
  RandomStream random = key.stream(RandomUse::kAffine);
  AffineSpec spec;
  spec.angle = symmetric(random, options.rotate);
  spec.translate_x = std::nearbyint(symmetric(random, options.translate * options.size.width));
  spec.translate_y = std::nearbyint(symmetric(random, options.translate * options.size.height));
  spec.scale = random.uniform(1 - options.zoom, 1 + options.zoom);
  spec.shear_x = symmetric(random, options.shear);
  return spec;
}

void set_affine(const AffineSpec& spec, Effect& effect) {
  const double degree = std::numbers::pi / 180;
  const double angle = spec.angle * degree, shear_y = spec.shear_y * degree;
  const double tan_shear_x = std::tan(spec.shear_x * degree);
  const double a = std::cos(angle - shear_y) / std::cos(shear_y);
  const double c = std::sin(angle - shear_y) / std::cos(shear_y);
  const double b = -(a * tan_shear_x + std::sin(angle));
  const double d = std::cos(angle) - c * tan_shear_x;
  const double inverse[4] = {d / spec.scale, -b / spec.scale, -c / spec.scale, a / spec.scale};
  const double from_x = spec.center_x + spec.translate_x, from_y = spec.center_y + spec.translate_y;
  const double matrix[6] = {
      inverse[0], inverse[1], spec.center_x - inverse[0] * from_x - inverse[1] * from_y,
      inverse[2], inverse[3], spec.center_y - inverse[2] * from_x - inverse[3] * from_y};
  effect.kind = EffectKind::kAffine;
  for (int i = 0; i < 6; ++i) effect.value[i] = static_cast<float>(matrix[i]);
}

bool has_effects(const AugmentOptions& options) {
  return has_affine(options) || options.policy != Policy::kNone || options.brightness > 0 ||
         options.contrast > 0 || options.saturation > 0 || options.hue > 0 || options.grey > 0 ||
         options.blur > 0 || options.gaussian_noise > 0 || options.erase > 0;
}

EffectList draw_effects(const AugmentOptions& options, const SampleKey& key) {
  EffectList list;
  // Not only faster: the test of an effect fails if has_effects() has been forgotten.
  if (!has_effects(options)) return list;
  if (has_affine(options)) set_affine(draw_affine(options, key), list.add(EffectKind::kAffine));
  draw_policy(options, key, list);
  draw_colour(options, key, list);
  draw_blur(options, key, list);
  draw_noise(options, key, list);
  draw_erase(options, key, list);
  return list;
}

}  // namespace saturate
