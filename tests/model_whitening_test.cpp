// Whitening filters.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "model/factories.h"
#include "saturate/model.h"

namespace saturate {
namespace {

// Neighbours and channels are correlated, as in photographs.
at::Tensor correlated_images() {
  const at::Tensor noise = at::randn({64, 3, 17, 17});
  const at::Tensor smooth = noise + 2 * noise.roll({1}, {2}) + noise.roll({1}, {3});
  return smooth + 3 * smooth.mean({1}, /*keepdim=*/true);
}

// [C, C] over positions of [N, C, H, W], uncentred.
at::Tensor covariance(const at::Tensor& features) {
  const at::Tensor rows = features.permute({0, 2, 3, 1}).reshape({-1, features.size(1)});
  return at::matmul(rows.t(), rows) / double(rows.size(0));
}

TEST(Whitening, OutputsAreUncorrelatedWithUnitVariance) {
  const at::Tensor images = correlated_images();
  const at::Tensor filters = whitening_filters(images, 2, 12);
  ASSERT_EQ(filters.sizes(), (at::IntArrayRef{24, 3, 2, 2}));
  const at::Tensor outputs = at::conv2d(images, filters.narrow(0, 0, 12), {}, /*stride=*/2);
  EXPECT_TRUE(at::allclose(covariance(outputs), at::eye(12), 0, 0.02)) << covariance(outputs);
  EXPECT_FALSE(at::allclose(covariance(images), at::eye(3), 0, 0.5)) << "the input is not white";
  EXPECT_TRUE(filters.narrow(0, 12, 12).equal(-filters.narrow(0, 0, 12)));
}

TEST(Whitening, Resnet9ComputesItsStemFromTheImages) {
  ModelOptions options;
  options.name = "resnet9";
  options.width = 0.25;
  const auto model = make_model(options, {10, 32, Env::posix()});
  const at::Tensor images = correlated_images();
  model->facets().prepare(images);
  for (const auto& [name, tensor] : model->buffers())
    if (name == "stem_weight") {
      EXPECT_TRUE(at::allclose(tensor, whitening_filters(images, 2, 12)));
      return;
    }
  FAIL() << "no stem_weight";
}

}  // namespace
}  // namespace saturate
