// TrivialAugment Wide (Mueller and Hutter 2021) and RandAugment (Cubuk et al. 2019), as in
// torchvision.transforms.v2 with bilinear interpolation: fourteen equally likely operations with 31
// magnitudes. TrivialAugment applies one of random magnitude, RandAugment augment.policy_ops of one
// magnitude, from narrower ranges.
#pragma once

#include "saturate/data/effects.h"

namespace saturate {

// In torchvision's order, with its names after the k.
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

// Magnitude `bin` in [0, kPolicyMagnitudes) of an operation on images of `size`: 0 if it has none.
// REQUIRES: policy is not kNone.
double policy_magnitude(Policy policy, PolicyOp op, int bin, const ImageSize& size);

// Whether the magnitude's sign is random too.
bool has_sign(PolicyOp op);

// Adds the operation's effects, none for kIdentity.
void add_policy_op(PolicyOp op, double magnitude, const ImageSize& size, EffectList& list);

void draw_policy(const AugmentOptions& options, const SampleKey& key, EffectList& list);

}  // namespace saturate
