// The local work of SyncBatchNorm on a CPU against torch's BatchNorm of the joint batch.
#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/local_norm_testing.h"

namespace saturate::testing {
namespace {

TEST(LocalNorm, OnSharesEqualsBatchNormOnTheWholeBatch) {
  for (const auto& [counts, side] : kNormCases) {
    SCOPED_TRACE(::testing::PrintToString(counts));
    const auto inputs = norm_images("norm.x", counts, side),
               gradients = norm_images("norm.dy", counts, side);
    const NormedShares found = norm_shares(inputs, gradients, at::kCPU, at::kFloat, false);
    const at::Tensor joint = at::cat(inputs).requires_grad_();
    const at::Tensor mean = at::full({kNormChannels}, 0.25), var = at::full({kNormChannels}, 2.0);
    if (joint.numel() <= kNormChannels) {  // torch refuses it
      const bool any = joint.numel() > 0;
      EXPECT_TRUE(at::allclose(found.running_var, var * (any ? 1 - kNormMomentum : 1)));
      EXPECT_EQ(found.running_mean.equal(mean), !any);
      continue;
    }
    const at::Tensor weight = norm_weight().requires_grad_(), bias = norm_bias().requires_grad_();
    const at::Tensor expected = at::batch_norm(joint, weight, bias, mean, var, /*training=*/true,
                                               kNormMomentum, kNormEps, /*cudnn_enabled=*/false);
    expected.backward(at::cat(gradients));
    EXPECT_TRUE(at::allclose(at::cat(found.outputs), expected, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(at::cat(found.to_inputs), joint.grad(), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(found.to_weight, weight.grad(), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(found.to_bias, bias.grad(), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(found.running_mean, mean, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(found.running_var, var, 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace saturate::testing
