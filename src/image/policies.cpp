#include "image/policies.h"

#include <cmath>
#include <iterator>
#include <numbers>

namespace saturate {
namespace {

double degrees_of_slope(double slope) {
  return std::atan(slope) * 180 / std::numbers::pi;
}

// The effects of the operations from kFirstColourOp on.
constexpr PolicyOp kFirstColourOp = PolicyOp::kBrightness;
constexpr EffectKind kColourEffects[] = {EffectKind::kBrightness,   EffectKind::kSaturation,
                                         EffectKind::kContrast,     EffectKind::kSharpness,
                                         EffectKind::kPosterize,    EffectKind::kSolarize,
                                         EffectKind::kAutocontrast, EffectKind::kEqualize};
static_assert(size_t(kFirstColourOp) + std::size(kColourEffects) == size_t{kPolicyOps});

double colour_value(PolicyOp op, double magnitude) {
  if (op <= PolicyOp::kSharpness) return 1 + magnitude;
  if (op == PolicyOp::kPosterize) return magnitude;
  return op == PolicyOp::kSolarize ? 255 * magnitude : 0;
}

struct Ranges {
  double shear, translate, rotate, factor;
  int bits_dropped;
};

// `side`: along which an operation moves.
Ranges ranges_of(Policy policy, int side) {
  if (policy == Policy::kTrivial) return {0.99, 32, 135, 0.99, 6};
  return {0.3, 150.0 / 331 * side, 30, 0.9, 4};
}

}  // namespace

double policy_magnitude(Policy policy, PolicyOp op, int bin, const ImageSize& size) {
  const bool down = op == PolicyOp::kTranslateY;
  const Ranges ranges = ranges_of(policy, down ? size.height : size.width);
  const double share = double(bin) / (kPolicyMagnitudes - 1);
  if (op == PolicyOp::kIdentity || op > PolicyOp::kSolarize) return 0;
  if (op <= PolicyOp::kShearY) return ranges.shear * share;
  if (op <= PolicyOp::kTranslateY) return ranges.translate * share;
  if (op == PolicyOp::kRotate) return ranges.rotate * share;
  if (op <= PolicyOp::kSharpness) return ranges.factor * share;
  if (op == PolicyOp::kPosterize) return std::nearbyint(8 - ranges.bits_dropped * share);
  return 1 - share;
}

bool has_sign(PolicyOp op) {
  return op >= PolicyOp::kShearX && op <= PolicyOp::kSharpness;
}

void add_policy_op(PolicyOp op, double magnitude, const ImageSize& size, EffectList& list) {
  if (op == PolicyOp::kIdentity) return;
  if (op >= kFirstColourOp) {
    list.add(kColourEffects[size_t(op) - size_t(kFirstColourOp)],
             static_cast<float>(colour_value(op, magnitude)));
    return;
  }
  AffineSpec spec;
  if (op <= PolicyOp::kShearY) {
    (op == PolicyOp::kShearX ? spec.shear_x : spec.shear_y) = degrees_of_slope(magnitude);
    spec.center_x = -0.5 * size.width;  // the first pixel's corner is fixed
    spec.center_y = -0.5 * size.height;
  } else if (op <= PolicyOp::kTranslateY) {
    (op == PolicyOp::kTranslateX ? spec.translate_x : spec.translate_y) = std::trunc(magnitude);
  } else {
    spec.angle = -magnitude;  // F.rotate has the opposite direction of F.affine
  }
  set_affine(spec, list.add(EffectKind::kAffine));
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
