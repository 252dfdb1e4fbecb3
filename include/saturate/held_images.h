// A dataset's images on the device that trains, which a loader's places refer to.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate {

// One of two: images at the batch's size, or images held whole. A copy shares the memory.
struct HeldImages {
  at::Tensor images;  // [N, S, S, 3] uint8, S a batch's side
  // Held whole: the bytes of [N] HeldPhoto, and of a ResizeFilters to S up to their longest side.
  at::Tensor photos, filters, filter_values;
  std::vector<at::Tensor> pixels;  // what `photos` point to
  bool any() const { return images.defined() || photos.defined(); }
};

}  // namespace saturate
