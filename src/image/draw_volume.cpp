// Draws the transform of a volume: angles like torchio's RandomAffine, gamma like MONAI's
// RandAdjustContrast.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "saturate/data/effects.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using Matrix = std::array<std::array<double, 3>, 3>;  // rows: depth, height, width

constexpr Matrix kIdentity{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out{};
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j)
      for (size_t k = 0; k < 3; ++k) out[i][j] += a[i][k] * b[k][j];
  return out;
}

// In the plane of two axes.
Matrix rotation(size_t a, size_t b, double degrees) {
  const double angle = degrees * std::numbers::pi / 180;
  Matrix out = kIdentity;
  out[a][a] = out[b][b] = std::cos(angle);
  out[b][a] = std::sin(angle);
  out[a][b] = -out[b][a];
  return out;
}

// Shifts along axis `a` in proportion to the place on axis `b`.
Matrix shearing(size_t a, size_t b, double degrees) {
  Matrix out = kIdentity;
  out[a][b] = std::tan(degrees * std::numbers::pi / 180);
  return out;
}

// The inverse of the affine about the crop's centre, and the shift that follows it.
struct AffineDraw {
  Matrix inverse = kIdentity;
  std::array<double, 3> shift{};  // voxels
};

AffineDraw draw_volume_affine(const AugmentOptions& options, const SampleKey& key,
                              const VolumeForm& form) {
  RandomStream random = key.stream(RandomUse::kAffine);
  const auto symmetric = [&](double range) { return random.uniform(-range, range); };
  const auto flat = [&](size_t axis) { return form.in[axis] == 1; };
  AffineDraw draw;
  const double factor = random.uniform(1 - options.zoom, 1 + options.zoom);
  for (size_t axis = 0; axis < 3; ++axis)
    if (!flat(axis)) draw.inverse[axis][axis] = 1 / factor;
  // About the depth, the height and the width axis; then along width and height by the others.
  constexpr size_t kPlanes[3][2] = {{1, 2}, {2, 0}, {0, 1}};
  for (const auto& [a, b] : kPlanes) {
    const double angle = symmetric(options.rotate);
    if (!flat(a) && !flat(b)) draw.inverse = product(draw.inverse, rotation(a, b, -angle));
  }
  constexpr size_t kShears[3][2] = {{2, 1}, {2, 0}, {1, 0}};
  for (const auto& [a, b] : kShears) {
    const double angle = symmetric(options.shear);
    if (!flat(a) && !flat(b)) draw.inverse = product(draw.inverse, shearing(a, b, -angle));
  }
  for (size_t axis = 0; axis < 3; ++axis) {
    const double shift = std::nearbyint(symmetric(options.translate * form.out[axis]));
    if (!flat(axis)) draw.shift[axis] = shift;
  }
  return draw;
}

// The first voxel of the crop.
std::array<int, 3> centre_of(const VolumeForm& form) {
  return {(form.in[0] - form.out[0]) / 2, (form.in[1] - form.out[1]) / 2,
          (form.in[2] - form.out[2]) / 2};
}

std::array<int, 3> draw_origin(const AugmentOptions& options, const SampleKey& key,
                               const VolumeForm& form) {
  std::array<int, 3> origin = centre_of(form);
  RandomStream random = key.stream(RandomUse::kAugment);
  for (size_t axis = 0; axis < 3; ++axis) {
    if (options.crop == CropKind::kRandom)
      origin[axis] = static_cast<int>(random.below(uint64_t(form.in[axis] - form.out[axis]) + 1));
    if (options.crop == CropKind::kPad && form.in[axis] > 1)
      origin[axis] =
          static_cast<int>(random.below(2 * uint64_t(options.padding) + 1)) - options.padding;
  }
  return origin;
}

// An output voxel p comes from the affine's inverse about the crop's centre, then from the flip,
// and then lies at `origin` in the volume.
void set_matrix(const VolumeForm& form, const std::array<int, 3>& origin,
                const std::array<bool, 3>& flip, const AffineDraw& affine, VolumeEffects& effects) {
  for (size_t i = 0; i < 3; ++i) {
    const double sign = flip[i] ? -1 : 1;
    double offset = origin[i] + (form.out[i] - 1) * 0.5;
    for (size_t j = 0; j < 3; ++j) {
      const double value = sign * affine.inverse[i][j];
      offset -= value * ((form.out[j] - 1) * 0.5 + affine.shift[j]);
      effects.matrix[i * 4 + j] = static_cast<float>(value);
    }
    effects.matrix[i * 4 + 3] = static_cast<float>(offset);
  }
}

double draw_volume_factor(double range, RandomUse use, const SampleKey& key) {
  RandomStream random = key.stream(use);
  return range == 0 ? 1 : random.uniform(std::max(0.0, 1 - range), 1 + range);
}

void draw_intensity(const AugmentOptions& options, const SampleKey& key, const VolumeForm& form,
                    const VolumeRange& range, VolumeEffects& effects) {
  const bool levels = form.type == VoxelType::kUint8;
  if (options.contrast_gamma && options.contrast > 0 && range.high > range.low) {
    const double most = std::log(1 + options.contrast);
    effects.gamma =
        static_cast<float>(std::exp(key.stream(RandomUse::kGamma).uniform(-most, most)));
    effects.low = range.low;
    effects.range = range.high - range.low;
  }
  const double brightness = draw_volume_factor(options.brightness, RandomUse::kBrightness, key);
  const double contrast =
      options.contrast_gamma ? 1 : draw_volume_factor(options.contrast, RandomUse::kContrast, key);
  effects.scale = static_cast<float>(brightness * contrast);
  effects.shift = static_cast<float>(brightness * (1 - contrast) * range.mean);
  if (options.gaussian_noise == 0) return;
  effects.noise = static_cast<float>(options.gaussian_noise * (levels ? 255 : 1));
  effects.seed = key.stream(EffectKind::kNoise).next_u32();
}

}  // namespace

bool needs_volume_range(const AugmentOptions& options) {
  return options.contrast > 0;
}

bool warps_volumes(const AugmentOptions& options) {
  return options.rotate > 0 || options.shear > 0 || options.zoom > 0;
}

bool changes_volumes(const AugmentOptions& options) {
  return options.brightness > 0 || options.contrast > 0 || options.gaussian_noise > 0;
}

void check_volume_options(const AugmentOptions& options) {
  const auto refuse = [](bool given, const char* key, const char* remedy) {
    if (given) fail(ErrorKind::kUsage, "does not apply to volumes", key, remedy);
  };
  constexpr auto* kLeaveOut = "Leave it out; docs/augment.md lists the keys that do";
  refuse(options.crop == CropKind::kRandomResized, "augment.crop=random_resized",
         "Give augment.crop=random, and augment.zoom for the scale");
  refuse(options.crop == CropKind::kNone && options.size.is_set(), "augment.size without a crop",
         "Give augment.crop=random or center: volumes are not resized");
  refuse(options.crop == CropKind::kPad && options.size.is_set(),
         "augment.size with augment.crop=pad", "Leave it out: padding keeps the volume's size");
  refuse(!options.size.is_square(), "augment.size with a height and a width",
         "Give an integer, the crop's side along each axis");
  refuse(!options.size_changes.empty(), "augment.size by epoch", "Give an integer");
  refuse(options.crop == CropKind::kLetterbox, "augment.crop=letterbox",
         "Give augment.crop=none, random or center: volumes are not resized");
  refuse(options.flip_alternate, "augment.flip=alternate", "Give a probability for each axis");
  refuse(options.policy != Policy::kNone, "augment.policy", kLeaveOut);
  refuse(options.saturation > 0, "augment.saturation", kLeaveOut);
  refuse(options.hue > 0, "augment.hue", kLeaveOut);
  refuse(options.grey > 0, "augment.grey", kLeaveOut);
  refuse(options.blur > 0, "augment.blur", kLeaveOut);
  refuse(options.erase > 0, "augment.erase", kLeaveOut);
  refuse(options.mixup > 0, "augment.mixup", kLeaveOut);
  refuse(options.cutmix > 0, "augment.cutmix", kLeaveOut);
  refuse(options.eval_resize != 1, "augment.eval_resize", kLeaveOut);
}

void set_volume_size(const AugmentOptions& options, const int32_t* in, int32_t* out) {
  const bool crops = options.crop == CropKind::kRandom || options.crop == CropKind::kCenter;
  for (int axis = 0; axis < 3; ++axis)
    out[axis] = crops && options.size.is_set() ? std::min(in[axis], options.size.height) : in[axis];
}

VolumeEffects draw_volume(const AugmentOptions& options, const SampleKey& key,
                          const VolumeForm& form, const VolumeRange& range) {
  VolumeEffects effects;
  std::array<bool, 3> flip{};
  RandomStream flips = key.stream(RandomUse::kFlip);
  for (bool& axis : flip) axis = flips.bernoulli(options.flip);
  set_matrix(form, draw_origin(options, key, form), flip, draw_volume_affine(options, key, form),
             effects);
  draw_intensity(options, key, form, range, effects);
  return effects;
}

VolumeEffects eval_volume(const VolumeForm& form) {
  VolumeEffects effects;
  set_matrix(form, centre_of(form), {}, {}, effects);
  return effects;
}

}  // namespace saturate
