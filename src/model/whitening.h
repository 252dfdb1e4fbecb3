// Convolution filters that whiten image patches: their outputs are uncorrelated and of equal
// variance, so the following layers learn from the first step on (Jordan, "94% on CIFAR-10 in 3.29
// seconds on a single GPU", arXiv 2404.00498, section 3.2).
#pragma once

#include <cstdint>

#include "model/stages.h"

namespace saturate {

// Filters [2 * components, C, kernel, kernel] from images [N, C, H, W]: the leading eigenvectors of
// the patch covariance, each divided by the root of its eigenvalue, then all of them negated (for a
// following ReLU). REQUIRES: components <= C * kernel^2.
at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, int64_t components);

// A network whose first convolution, the stem, whitens: a frozen 2x2 kernel with two outputs for
// each component of 2 x 2 pixels with three channels, and a trained bias.
class WhitenedChain : public Chain {
 public:
  static constexpr int64_t kWantedImages = 2048;
  void prepare(const at::Tensor& images);  // sets the stem's filters

 protected:
  static constexpr int64_t kStemKernel = 2, kStemComponents = 3 * kStemKernel * kStemKernel;
  static constexpr int64_t kStemChannels = 2 * kStemComponents;

  WhitenedChain();
  at::Tensor stem(const at::Tensor& images) const;

 private:
  at::Tensor stem_weight_, stem_bias_;
};

}  // namespace saturate
