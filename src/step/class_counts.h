// Pixels by class, for segmentation's metrics.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// How many pixels are of each class: [3, classes] int64 beside the tensors; the rows are labelled
// and predicted so, labelled so, predicted so. `labels`, `found`: [N, H, W] int64, within the
// classes where `counted` [N, H, W] bool is true; other pixels are left out. Nothing waits for a
// GPU.
at::Tensor count_classes(const at::Tensor& labels, const at::Tensor& found,
                         const at::Tensor& counted, int64_t classes);

// The way of a GPU, for any device: most pixels are of few classes, and additions to one counter
// come one after the other, so each counter is 32 to 1,024 that neighbouring pixels take turns in.
// The counters take 2 MiB, or 256 bytes a class where that is more.
at::Tensor count_classes_spread(const at::Tensor& labels, const at::Tensor& found,
                                const at::Tensor& counted, int64_t classes);

}  // namespace saturate
