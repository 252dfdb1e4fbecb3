#include "image/policies.h"

#include <cmath>
#include <numbers>

namespace saturate {
namespace {

double degrees_of_slope(double slope) {
  return std::atan(slope) * 180 / std::numbers::pi;
}

struct Ranges {
  double shear, translate, rotate, factor;
  int bits_dropped;
};

Ranges ranges_of(Policy policy, int size) {
  if (policy == Policy::kTrivial) return {0.99, 32, 135, 0.99, 6};
  return {0.3, 150.0 / 331 * size, 30, 0.9, 4};
}

}  // namespace

double policy_magnitude(Policy policy, PolicyOp op, int bin, int size) {
  const Ranges ranges = ranges_of(policy, size);
  const double share = double(bin) / (kPolicyMagnitudes - 1);
  switch (op) {
    case PolicyOp::kShearX:
    case PolicyOp::kShearY:
      return ranges.shear * share;
    case PolicyOp::kTranslateX:
    case PolicyOp::kTranslateY:
      return ranges.translate * share;
    case PolicyOp::kRotate:
      return ranges.rotate * share;
    case PolicyOp::kBrightness:
    case PolicyOp::kColor:
    case PolicyOp::kContrast:
    case PolicyOp::kSharpness:
      return ranges.factor * share;
    case PolicyOp::kPosterize:
      return std::nearbyint(8 - ranges.bits_dropped * share);
    case PolicyOp::kSolarize:
      return 1 - share;
    case PolicyOp::kIdentity:
    case PolicyOp::kAutoContrast:
    case PolicyOp::kEqualize:
      break;
  }
  return 0;
}

bool has_sign(PolicyOp op) {
  return op >= PolicyOp::kShearX && op <= PolicyOp::kSharpness;
}

void add_policy_op(PolicyOp op, double magnitude, int size, EffectList& list) {
  AffineSpec spec;
  const auto add_affine = [&] { set_affine(spec, list.add(EffectKind::kAffine)); };
  const auto factor = static_cast<float>(1 + magnitude);
  switch (op) {
    case PolicyOp::kIdentity:
      return;
    case PolicyOp::kShearX:
    case PolicyOp::kShearY:  // the first pixel's corner is fixed
      (op == PolicyOp::kShearX ? spec.shear_x : spec.shear_y) = degrees_of_slope(magnitude);
      spec.center_x = spec.center_y = -0.5 * size;
      return add_affine();
    case PolicyOp::kTranslateX:
    case PolicyOp::kTranslateY:
      (op == PolicyOp::kTranslateX ? spec.translate_x : spec.translate_y) = std::trunc(magnitude);
      return add_affine();
    case PolicyOp::kRotate:  // F.rotate has the opposite direction of F.affine
      spec.angle = -magnitude;
      return add_affine();
    case PolicyOp::kBrightness:
      return void(list.add(EffectKind::kBrightness, factor));
    case PolicyOp::kColor:
      return void(list.add(EffectKind::kSaturation, factor));
    case PolicyOp::kContrast:
      return void(list.add(EffectKind::kContrast, factor));
    case PolicyOp::kSharpness:
      return void(list.add(EffectKind::kSharpness, factor));
    case PolicyOp::kPosterize:
      return void(list.add(EffectKind::kPosterize, static_cast<float>(magnitude)));
    case PolicyOp::kSolarize:
      return void(list.add(EffectKind::kSolarize, static_cast<float>(255 * magnitude)));
    case PolicyOp::kAutoContrast:
      return void(list.add(EffectKind::kAutocontrast));
    case PolicyOp::kEqualize:
      return void(list.add(EffectKind::kEqualize));
  }
}

void draw_policy(const AugmentOptions& options, const SampleKey& key, EffectList& list) {
  if (options.policy == Policy::kNone) return;
  RandomStream random = key.stream(RandomUse::kPolicy);
  const bool trivial = options.policy == Policy::kTrivial;
  const int count = trivial ? 1 : options.policy_ops;
  for (int i = 0; i < count; ++i) {
    const auto op = static_cast<PolicyOp>(random.below(kPolicyOps));
    const int bin =
        trivial ? static_cast<int>(random.below(kPolicyMagnitudes)) : options.policy_magnitude;
    double magnitude = policy_magnitude(options.policy, op, bin, options.size);
    if (has_sign(op) && random.bernoulli(0.5)) magnitude = -magnitude;
    add_policy_op(op, magnitude, options.size, list);
  }
}

}  // namespace saturate
