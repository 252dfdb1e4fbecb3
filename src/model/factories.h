// The model factories of model_table.h, and code that they share. Factories may assume
// make_model()'s checks: positive width, classes and size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "model/model_table.h"
#include "saturate/model.h"

namespace saturate {

#define SATURATE_ROW(name, ...) \
  std::unique_ptr<Model> make_##name(const ModelOptions& options, const ModelInput& input);
SATURATE_MODELS(SATURATE_ROW)
#undef SATURATE_ROW

// Fails with kUsage if a side of the images is below `least`.
void require_size(const ModelOptions& options, const ModelInput& input, int least);

// Fails with kUsage unless both sides of the images are multiples of `step`.
void require_multiple(const ModelOptions& options, const ModelInput& input, int step);
// Fails with kUsage if training changes the size of the images.
void require_one_size(const ModelOptions& options, const ModelInput& input);
// Fails with kUsage unless the images have one size, a square.
void require_square(const ModelOptions& options, const ModelInput& input);

// A number of channels multiplied by model.width, at least 1.
inline int64_t scaled(int64_t channels, double width) {
  return std::max<int64_t>(1, std::llround(double(channels) * width));
}

// at::linear(x, weight). Rows of zeros are added to the weight [outputs, inputs], up to a multiple
// of `multiple`; the result is a view without their outputs. Backward writes zeros between the rows
// of a gradient that has the result's strides and is the only tensor in its memory, and copies any
// other.
at::Tensor padded_linear(const at::Tensor& x, const at::Tensor& weight, int64_t multiple);

// Convolution filters that whiten image patches: their outputs are uncorrelated and of equal
// variance, so the following layers learn from the first step on (arXiv 2404.00498, section 3.2).
// From images [N, C, H, W] filters [2 * components, C, kernel, kernel]: the leading eigenvectors of
// the patch covariance, each divided by the root of its eigenvalue, then all of them negated (for a
// following ReLU). REQUIRES: components <= C * kernel^2.
at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, int64_t components);

}  // namespace saturate
