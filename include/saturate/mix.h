// MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019): a training batch mixed with itself.
//
// Sample i is mixed with sample (i - offset) mod count, as in torchvision's v2.MixUp and v2.CutMix
// with an offset of 1. The parameters are drawn here; feed.h applies them on the device.
#pragma once

#include <cstddef>

#include "saturate/augment.h"
#include "saturate/effects.h"

namespace saturate {

enum class MixKind { kNone, kMixUp, kCutMix };

struct Mix {
  MixKind kind = MixKind::kNone;
  double lambda = 1;  // weight of a sample's own label; kMixUp: of its pixels too
  size_t offset = 0;  // 1 to count - 1
  Box box;            // kCutMix: the pixels taken from the other sample
};

// One Beta(alpha, alpha) draw per batch; if both are on, one is chosen at random. `batch`
// identifies the batch by its first sample. kNone if both are off, or count is below 2.
Mix draw_mix(const AugmentOptions& options, const SampleKey& batch, size_t count);

}  // namespace saturate
