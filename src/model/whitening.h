// Convolution filters that whiten image patches: their outputs are uncorrelated and of equal
// variance, so the following layers learn from the first step on (Jordan, "94% on CIFAR-10 in 3.29
// seconds on a single GPU", arXiv 2404.00498, section 3.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate {

// For the networks' first convolutions, which have two outputs for each component of 2 x 2 pixels
// with three channels.
inline constexpr int64_t kStemKernel = 2;
inline constexpr int64_t kStemComponents = 3 * kStemKernel * kStemKernel;
inline constexpr int64_t kStemChannels = 2 * kStemComponents;
inline constexpr int64_t kStemImages = 2048;  // from which the filters are computed

// Filters [2 * components, C, kernel, kernel] from images [N, C, H, W]: the leading eigenvectors of
// the patch covariance, each divided by the root of its eigenvalue, then all of them negated (for a
// following ReLU). REQUIRES: components <= C * kernel^2.
at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, int64_t components);

}  // namespace saturate
