// Logits for the tests of a language model's loss, and what is computed from them: by tensors on a
// device, or by the kernels' passes with one thread.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "task/token_loss.h"
#include "task/token_passes.h"

namespace saturate {

struct TokenResults {
  at::Tensor loss, gradient, hits;  // on the CPU: the mean; of scale() times it; how many
};

// 40 rows of logits, seven of which do not count, in a wider tensor: nothing may read or write its
// other columns.
struct TokenCase {
  static constexpr int64_t kRows = 40, kGap = 5, kCounting = kRows - 7;

  // `first`: the column of the first class. With 0, logits and gradient lie at the same place of a
  // GPU's accesses; else not.
  TokenCase(int64_t vocabulary, at::ScalarType type, int64_t first = 0)
      : classes(vocabulary), first(first) {
    at::manual_seed(uint64_t(vocabulary));
    wide = at::full({kRows, first + vocabulary + kGap}, NAN).to(type);
    at::Tensor own = logits();
    own.copy_(at::randn({kRows, vocabulary}) * 3);
    labels = at::randint(vocabulary, {kRows});
    // A third are hits. In the first rows another class has as much: a later one, and one before.
    const at::Tensor best = own.to(at::kFloat).argmax(1);
    labels.narrow(0, 0, kRows / 3).copy_(best.narrow(0, 0, kRows / 3));
    if (vocabulary > 2) {
      own[0][vocabulary - 1] = own[0][best[0].item<int64_t>()];
      own[1][vocabulary - 1] = own[1][best[1].item<int64_t>()];
      labels[1] = vocabulary - 1;
    }
    labels.narrow(0, kRows / 2, 7).fill_(-100);
  }

  at::Tensor logits() const { return wide.narrow(1, first, classes); }

  // Infinities and NaN, as the label's logit and as another's, also in a row that does not count.
  void spoil() {
    const at::Tensor own = logits();
    int64_t row = kRows / 2 + 6;
    for (const double value : {double(INFINITY), -double(INFINITY), double(NAN)})
      for (const int64_t away : {0, 1}) {
        own[row][(labels[row].clamp_min(0).item<int64_t>() + away) % classes] = value;
        ++row;
      }
    own[row].fill_(-INFINITY);
  }

  // So large that the gradient of most classes is of the size of one.
  double scale() const { return 0.75 * double(classes) * kCounting; }

  TokenResults by_tensors(const at::Device& device = at::kCPU) const {
    const at::Tensor all = wide.to(device, /*non_blocking=*/false, /*copy=*/true);
    all.requires_grad_();
    const at::Tensor found = all.narrow(1, first, classes), wanted = labels.to(device);
    const at::Tensor loss = token_loss(found, wanted);
    (loss * scale()).backward();
    return {loss.detach().cpu(), all.grad().narrow(1, first, classes).cpu(),
            count_token_hits(found.detach(), wanted).cpu()};
  }

  TokenResults by_passes() const {
    const auto floats = [] { return at::empty({kRows}); };
    const at::Tensor peaks = floats(), log_sums = floats(), losses = floats();
    const at::Tensor hits = at::empty({kRows}, at::TensorOptions(at::kByte));
    const at::Tensor gradient = at::full_like(wide, 7);
    const TokenRows rows{.logits = logits().const_data_ptr(),
                         .labels = labels.const_data_ptr<int64_t>(),
                         .count = kRows,
                         .stride = wide.stride(0),
                         .classes = int(classes),
                         .type = wide.scalar_type() == at::kFloat      ? LogitType::kFloat32
                                 : wide.scalar_type() == at::kBFloat16 ? LogitType::kBfloat16
                                                                       : LogitType::kFloat16};
    const TokenSums sums{peaks.mutable_data_ptr<float>(), log_sums.mutable_data_ptr<float>(),
                         losses.mutable_data_ptr<float>(), hits.mutable_data_ptr<uint8_t>()};
    const at::Tensor weights = labels.ge(0).to(at::kFloat) / kCounting;
    const at::Tensor factors = weights * scale();
    const auto state = std::make_unique<TokenState>();
    for (int64_t i = 0; i < kRows; ++i) {
      sum_row(LoneTeam(), rows, i, sums, *state);
      row_gradient(LoneTeam(), rows, i, sums, factors.const_data_ptr<float>()[i],
                   gradient.mutable_data_ptr());
    }
    const at::Tensor beyond = gradient.narrow(1, classes, first + kGap);
    EXPECT_TRUE(beyond.eq(7).all().item<bool>()) << "written beyond rows";
    return {(losses * weights).sum(), gradient.narrow(1, 0, classes), hits.sum()};
  }

  int64_t classes, first;
  at::Tensor wide, labels;
};

// To a few units in the last place.
inline void expect_same(const TokenResults& found, const TokenResults& expected,
                        at::ScalarType type) {
  const double loss = expected.loss.item<double>();
  if (loss == loss)
    EXPECT_NEAR(found.loss.item<double>(), loss, 1e-5);
  else
    EXPECT_TRUE(std::isnan(found.loss.item<double>()));
  EXPECT_EQ(found.hits.item<int64_t>(), expected.hits.item<int64_t>());
  EXPECT_EQ(found.gradient.scalar_type(), type);
  const double tolerance = type == at::kHalf ? 2e-3 : type == at::kBFloat16 ? 8e-3 : 1e-5;
  const at::Tensor a = found.gradient.to(at::kFloat), b = expected.gradient.to(at::kFloat);
  EXPECT_TRUE(at::allclose(a, b, tolerance, 1e-6, /*equal_nan=*/true))
      << (a - b).abs().max().item<double>();
}

}  // namespace saturate
