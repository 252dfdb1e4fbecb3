// The reducer of a custom loop, without the step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "saturate/data/error.h"
#include "saturate/gradient_reducer.h"
#include "tests/data_testing.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

// Else the rank without images fails alone, and the others wait for it.
TEST(GradientReducer, ALossWithoutAGradientIsRefusedAndAnEmptyBatchHasOne) {
  for (const bool find_unused : {false, true}) {
    DistributedOptions options;
    options.find_unused = find_unused;
    testing::run_ranks(2, [&](Group& group) {
      const at::Tensor weight = at::ones({2, 3}).requires_grad_();
      GradientReducer reducer(group, {{"weight", weight}}, options);
      reducer.before_forward();
      const bool has_images = group.rank() == 0;
      const at::Tensor images = at::ones({has_images ? 4 : 0, 3});
      const at::Tensor outputs = images.matmul(weight.t()).sum();
      if (!has_images) {
        const Error error =
            testing::error_of([&] { reducer.backward(at::full({}, 0.0), /*reduce=*/true); });
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        EXPECT_EQ(error.reason(), "the loss requires no gradient");
      }
      EXPECT_EQ(reducer.zero_loss().requires_grad(), !find_unused);
      reducer.backward(has_images ? outputs : outputs + reducer.zero_loss(), /*reduce=*/true);
      EXPECT_TRUE(at::equal(weight.grad(), at::full({2, 3}, 4.0, at::kFloat)));
    });
  }
}

}  // namespace
}  // namespace saturate
