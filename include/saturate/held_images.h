// A dataset's images on the training device, to which a loader's places refer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace saturate {

// Either images at the batch's size, or whole images. A copy shares the memory.
struct HeldImages {
  at::Tensor images;  // [N, S, S, 3] uint8, S a batch's side
  // Whole images: the bytes of [N] HeldPhoto, and of ResizeFilters to S up to their longest side.
  at::Tensor photos, filters, filter_values;
  std::vector<at::Tensor> pixels;  // memory that `photos` point to
  bool any() const { return images.defined() || photos.defined(); }
};

}  // namespace saturate
