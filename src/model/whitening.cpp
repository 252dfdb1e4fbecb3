#include "model/whitening.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

namespace saturate {

at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, int64_t components) {
  const at::NoGradGuard no_grad;
  constexpr double kFloor = 5e-4;  // keeps weak components from being amplified to noise
  const int64_t channels = images.size(1), values = channels * kernel * kernel;
  const at::Tensor patches = images.unfold(2, kernel, kernel)
                                 .unfold(3, kernel, kernel)  // [N, C, h, w, kernel, kernel]
                                 .permute({0, 2, 3, 1, 4, 5})
                                 .reshape({-1, values})
                                 .to(at::kDouble);
  const at::Tensor covariance = at::matmul(patches.t(), patches) / double(patches.size(0));
  // Ascending; on the CPU, so that runs on a GPU start like runs on the CPU, without cuSOLVER.
  const auto [eigenvalues, eigenvectors] = at::linalg_eigh(covariance.cpu());
  const at::Tensor scaled = (eigenvectors / (eigenvalues + kFloor).sqrt()).t().flip(0);
  const at::Tensor leading = scaled.narrow(0, 0, components);
  return at::cat({leading, -leading})
      .reshape({2 * components, channels, kernel, kernel})
      .to(images.options());
}

WhitenedChain::WhitenedChain()
    : stem_weight_(register_buffer("stem_weight",
                                   at::randn({kStemChannels, 3, kStemKernel, kStemKernel}) * 0.1)),
      stem_bias_(register_parameter("stem_bias", at::zeros({kStemChannels}))) {}

void WhitenedChain::prepare(const at::Tensor& images) {
  stem_weight_.copy_(whitening_filters(images, kStemKernel, kStemComponents));
}

at::Tensor WhitenedChain::stem(const at::Tensor& images) const {
  return at::conv2d(images, stem_weight_, stem_bias_);
}

}  // namespace saturate
