// TrivialAugment Wide (Mueller and Hutter 2021) and RandAugment (Cubuk et al. 2019), as
// torchvision.transforms.v2 has them with bilinear interpolation: fourteen operations, each equally
// likely, of 31 magnitudes. TrivialAugment applies one of any magnitude, RandAugment
// augment.policy_ops of one magnitude, from narrower ranges.
#pragma once

#include "saturate/effects.h"

namespace saturate {

// In torchvision's order and, but for the k, by its names.
enum class PolicyOp {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
};
constexpr int kPolicyOps = 14;
constexpr int kPolicyMagnitudes = 31;

// Magnitude `bin` in [0, kPolicyMagnitudes) of an operation on images of `size` pixels a side: 0
// for one that has none. REQUIRES: policy is not kNone.
double policy_magnitude(Policy policy, PolicyOp op, int bin, int size);

// Whether the magnitude's sign is drawn too.
bool has_sign(PolicyOp op);

// Adds what the operation does, which for kIdentity is nothing.
void add_policy_op(PolicyOp op, double magnitude, int size, EffectList& list);

void draw_policy(const AugmentOptions& options, const SampleKey& key, EffectList& list);

}  // namespace saturate
