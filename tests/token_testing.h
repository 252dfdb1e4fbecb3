// Logits for the tests of a language model's loss, and what is computed from them: by tensors on a
// device, or by the kernels' passes with one thread.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "task/token_loss.h"
#include "task/token_passes.h"

namespace saturate {

struct TokenResults {
  at::Tensor loss, gradient, hits;  // on the CPU: the mean; of 1.5 times it; how many
};

// 40 rows, some of which do not count, with `kGap` values after each that nothing may read.
struct TokenCase {
  static constexpr int64_t kRows = 40, kGap = 5;

  TokenCase(int64_t vocabulary, at::ScalarType type) : classes(vocabulary) {
    at::manual_seed(uint64_t(vocabulary));
    wide = at::full({kRows, vocabulary + kGap}, std::numeric_limits<double>::quiet_NaN()).to(type);
    wide.narrow(1, 0, vocabulary).copy_(at::randn({kRows, vocabulary}) * 3);
    labels = at::randint(vocabulary, {kRows});
    // A third are hits. In the first rows another class has as much: a later one, and one before.
    const at::Tensor best = wide.narrow(1, 0, vocabulary).to(at::kFloat).argmax(1);
    labels.narrow(0, 0, kRows / 3).copy_(best.narrow(0, 0, kRows / 3));
    if (vocabulary > 2) {
      wide[0][vocabulary - 1] = wide[0][best[0].item<int64_t>()];
      wide[1][vocabulary - 1] = wide[1][best[1].item<int64_t>()];
      labels[1] = vocabulary - 1;
    }
    labels.narrow(0, kRows / 2, 7).fill_(-100);
  }

  TokenResults by_tensors(const at::Device& device = at::kCPU) const {
    const at::Tensor all = wide.to(device, /*non_blocking=*/false, /*copy=*/true);
    all.requires_grad_();
    const at::Tensor logits = all.narrow(1, 0, classes), wanted = labels.to(device);
    const at::Tensor loss = token_loss(logits, wanted);
    (loss * 1.5).backward();
    return {loss.detach().cpu(), all.grad().narrow(1, 0, classes).cpu(),
            count_token_hits(logits.detach(), wanted).cpu()};
  }

  TokenResults by_passes() const {
    const auto floats = [] { return at::empty({kRows}); };
    const at::Tensor peaks = floats(), log_sums = floats(), losses = floats();
    const at::Tensor hits = at::empty({kRows}, at::TensorOptions(at::kByte));
    const at::Tensor gradient = at::full_like(wide, 7);
    const TokenRows rows{.logits = wide.const_data_ptr(),
                         .labels = labels.const_data_ptr<int64_t>(),
                         .count = kRows,
                         .stride = wide.stride(0),
                         .classes = int(classes),
                         .type = wide.scalar_type() == at::kFloat      ? LogitType::kFloat32
                                 : wide.scalar_type() == at::kBFloat16 ? LogitType::kBfloat16
                                                                       : LogitType::kFloat16};
    const TokenSums sums{peaks.mutable_data_ptr<float>(), log_sums.mutable_data_ptr<float>(),
                         losses.mutable_data_ptr<float>(), hits.mutable_data_ptr<uint8_t>()};
    const at::Tensor known = labels.ge(0);
    const at::Tensor weights = known.to(at::kFloat) / known.sum();
    const at::Tensor factors = weights * 1.5;
    const auto state = std::make_unique<TokenState>();
    for (int64_t i = 0; i < kRows; ++i) {
      sum_row(LoneTeam(), rows, i, sums, *state);
      row_gradient(LoneTeam(), rows, i, sums, factors.const_data_ptr<float>()[i],
                   gradient.mutable_data_ptr());
    }
    EXPECT_TRUE(gradient.narrow(1, classes, kGap).eq(7).all().item<bool>())
        << "written beyond rows";
    return {(losses * weights).sum(), gradient.narrow(1, 0, classes), hits.sum()};
  }

  int64_t classes;
  at::Tensor wide, labels;
};

inline void expect_same(const TokenResults& found, const TokenResults& expected,
                        at::ScalarType type) {
  EXPECT_NEAR(found.loss.item<double>(), expected.loss.item<double>(), 1e-5);
  EXPECT_EQ(found.hits.item<int64_t>(), expected.hits.item<int64_t>());
  EXPECT_EQ(found.gradient.scalar_type(), type);
  const double tolerance = type == at::kHalf ? 1e-3 : type == at::kBFloat16 ? 8e-3 : 1e-5;
  const at::Tensor a = found.gradient.to(at::kFloat), b = expected.gradient.to(at::kFloat);
  EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance * 1e-2))
      << (a - b).abs().max().item<double>();
}

}  // namespace saturate
