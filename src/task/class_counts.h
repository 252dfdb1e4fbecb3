// Pixel counts by class, for segmentation metrics.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// Pixels of each class, [3, classes] int64 on the tensors' device; the rows are correct, labelled,
// and predicted. `labels`, `found`: [N, H, W] int64, within the classes where `counted` [N, H, W]
// bool is true; other pixels are ignored. Does not wait for the GPU.
at::Tensor count_classes(const at::Tensor& labels, const at::Tensor& found,
                         const at::Tensor& counted, int64_t classes);

// The GPU algorithm, for any device: most pixels belong to few classes, and atomic additions to one
// counter are serialised, so each counter is split into 32 to 1,024 for neighbouring pixels. The
// counters take 2 MiB, or 256 bytes per class if that is more.
at::Tensor count_classes_spread(const at::Tensor& labels, const at::Tensor& found,
                                const at::Tensor& counted, int64_t classes);

}  // namespace saturate
