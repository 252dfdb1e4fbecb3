// MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019): a training batch mixed with itself.
//
// Sample i is mixed with sample (i - offset) mod count, as torchvision's v2.MixUp and v2.CutMix do
// with an offset of 1. What is mixed how is drawn here; feed.h does it, on the device.
#pragma once

#include <cstddef>

#include "saturate/augment.h"
#include "saturate/effects.h"

namespace saturate {

enum class MixKind { kNone, kMixUp, kCutMix };

struct Mix {
  MixKind kind = MixKind::kNone;
  double lambda = 1;  // the weight of a sample's own label; kMixUp: of its pixels too
  size_t offset = 0;  // 1 to count - 1
  Box box;            // kCutMix: the pixels that come from the other sample
};

// One Beta(alpha, alpha) for the whole batch; a coin decides where both are on. `batch` names the
// batch by its first sample. kNone where both are off, or count is below 2.
Mix draw_mix(const AugmentOptions& options, const SampleKey& batch, size_t count);

}  // namespace saturate
