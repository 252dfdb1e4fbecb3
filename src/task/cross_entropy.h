// The loss of classes, with the same arguments wherever it is computed.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "saturate/feed.h"

namespace saturate {

// logits [N, classes, ...] and labels [N, ...], without those that are kIgnoredLabel.
inline at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                double smoothing = 0,
                                at::Reduction::Reduction reduction = at::Reduction::Mean) {
  return at::cross_entropy_loss(logits, labels, /*weight=*/{}, reduction, kIgnoredLabel, smoothing);
}

}  // namespace saturate
