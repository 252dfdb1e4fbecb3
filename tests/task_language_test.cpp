// The language task: its loss against torch's, its metrics against their formulas.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "saturate/data/error.h"
#include "saturate/task.h"
#include "task/token_loss.h"
#include "tests/data_testing.h"
#include "tests/token_testing.h"

namespace saturate {
namespace {

struct Tokens {
  at::Tensor logits, labels;
};

Tokens random_tokens(int64_t vocabulary, int64_t count, at::ScalarType type) {
  at::manual_seed(vocabulary);
  return {(at::randn({3, count, vocabulary}) * 3).to(type), at::randint(vocabulary, {3, count})};
}

at::Tensor gradient_of(const at::Tensor& loss, const at::Tensor& logits) {
  (loss * 1.5).backward();
  return logits.grad();
}

// With 5,000 classes the rows are computed in several parts (see rows_at_once()).
TEST(TokenLoss, EqualsTorchsCrossEntropyWithItsGradient) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const int64_t vocabulary : {2, 65, 5000}) {
      const auto [logits, labels] = random_tokens(vocabulary, 300, type);
      labels[0].slice(0, 0, 70).fill_(-100);
      at::Tensor own = logits.clone().requires_grad_(), other = logits.clone().requires_grad_();
      const bool half = at::isReducedFloatingType(type);
      const at::Tensor found = token_loss(own, labels);
      const at::Tensor expected = at::cross_entropy_loss(
          (half ? other.to(at::kFloat) : other).flatten(0, 1), labels.flatten());
      EXPECT_EQ(found.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_NEAR(found.item<double>(), expected.item<double>(), 1e-5);
      const at::Tensor a = gradient_of(found, own), b = gradient_of(expected, other);
      EXPECT_EQ(a.scalar_type(), type);
      const double tolerance = (half ? 1e-2 : 1e-6) * b.abs().max().item<double>();
      EXPECT_LE((a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>(), tolerance)
          << type << vocabulary;
    }
}

TEST(TokenLoss, WithoutALabelThatCountsIsZero) {
  at::Tensor logits = at::randn({2, 3, 5}).requires_grad_();
  const at::Tensor loss = token_loss(logits, at::full({2, 3}, -100, at::kLong));
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(gradient_of(loss, logits).abs().sum().item<double>(), 0);
}

// As in torch, where such rows have no part in the loss, and NaN in the gradient.
TEST(TokenLoss, LogitsOfIgnoredLabelsMayBeInfinite) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    auto [logits, labels] = random_tokens(5, 4, type);
    labels[1].fill_(-100);
    logits[1][0][2] = HUGE_VAL;
    logits[1][1].fill_(-HUGE_VAL);
    at::Tensor finite = logits.clone();
    finite[1].fill_(0);
    EXPECT_EQ(token_loss(logits, labels).item<double>(), token_loss(finite, labels).item<double>());
  }
}

TEST(TokenLoss, NeedsNoGraphWithoutGradients) {
  const auto [logits, labels] = random_tokens(9, 4, at::kFloat);
  EXPECT_FALSE(token_loss(logits, labels).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(token_loss(logits.clone().requires_grad_(), labels).requires_grad());
}

TEST(TokenHits, AreTheTokensOfTheLargestLogit) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    auto [logits, labels] = random_tokens(5, 400, type);
    EXPECT_EQ(count_token_hits(logits, labels).item<int64_t>(),
              logits.argmax(-1).eq(labels).sum().item<int64_t>());
  }
  const at::Tensor equal = at::full({2, 4}, 1.0), wrong = equal.clone();
  wrong[0][2] = std::nan("");
  EXPECT_EQ(count_token_hits(equal, at::full({2}, 0, at::kLong)).item<int64_t>(), 2);
  EXPECT_EQ(count_token_hits(equal, at::full({2}, 1, at::kLong)).item<int64_t>(), 0);
  EXPECT_EQ(count_token_hits(wrong, at::full({2}, 0, at::kLong)).item<int64_t>(), 1);
  EXPECT_EQ(count_token_hits(equal, at::full({2}, -100, at::kLong)).item<int64_t>(), 0);
}

// The kernels' passes. With 66 and 1,004 classes rows begin at each place of an access.
TEST(TokenPasses, EqualTheLossWithItsGradient) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t vocabulary : {1, 2, 66, 1003, 1004})
      for (const int64_t first : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << type << " " << vocabulary << " " << first);
        TokenCase tokens(vocabulary, type, first);
        expect_same(tokens.by_passes(), tokens.by_tensors(), type);
        tokens.spoil();
        expect_same(tokens.by_passes(), tokens.by_tensors(), type);
      }
}

TEST(TokenPasses, ALabelThatIsNoClassMakesItsRowNaN) {
  TokenCase tokens(66, at::kHalf);
  const at::Tensor before = tokens.by_passes().gradient;
  tokens.labels[39] = 66;
  const TokenResults found = tokens.by_passes();
  EXPECT_TRUE(std::isnan(found.loss.item<double>()));
  EXPECT_TRUE(found.gradient[39].isnan().all().item<bool>());
  EXPECT_TRUE(found.gradient.narrow(0, 0, 39).equal(before.narrow(0, 0, 39)));
}

TEST(LanguageTask, MetricsAreOfAllTokens) {
  const auto task = language(7);
  const auto [logits, labels] = random_tokens(7, 20, at::kFloat);
  labels[1].slice(0, 0, 15).fill_(-100);
  RunningMetrics metrics(*task), first(*task), second(*task);
  const auto add = [&](RunningMetrics& to, int64_t begin, int64_t count) {
    const at::Tensor part = logits.narrow(0, begin, count), own = labels.narrow(0, begin, count);
    to.add(task->mean_loss(part, own, 0), part, own);
  };
  add(metrics, 0, 1);
  add(metrics, 1, 2);
  const Metrics found = metrics.read();
  const double loss = task->mean_loss(logits, labels, 0).item<double>();
  EXPECT_NEAR(found.loss, loss, 1e-6);
  EXPECT_NEAR(*found.value("perplexity"), std::exp(loss), 1e-4);
  EXPECT_NEAR(*found.value("bits_per_token"), loss / std::log(2), 1e-5);
  EXPECT_NEAR(*found.value("accuracy"),
              logits.argmax(-1).eq(labels).sum().item<double>() / (60 - 15), 1e-9);
  EXPECT_EQ(found.samples, 3);
  add(first, 0, 2);
  add(second, 2, 1);
  Metrics merged = first.read();
  merged.merge(second.read());
  task->derive(merged);
  EXPECT_NEAR(merged.loss, found.loss, 1e-5);
  EXPECT_NEAR(*merged.value("perplexity"), *found.value("perplexity"), 1e-2);
  EXPECT_NEAR(*merged.value("accuracy"), *found.value("accuracy"), 1e-12);
}

TEST(LanguageTask, CountsBitsPerByteOnlyForBytes) {
  EXPECT_EQ(language(256)->metric_names().at(1).name, "bpb");
  EXPECT_EQ(language(320)->metric_names().at(1).name, "bits_per_token");
  for (const MetricName& each : language(256)->metric_names())
    EXPECT_EQ(each.higher_is_better, each.name == "accuracy");
}

// So that windows of one length need no all-reduce.
TEST(LanguageTask, CountsTokensOnlyIfSamplesVary) {
  const auto [logits, labels] = random_tokens(7, 20, at::kFloat);
  labels[1].slice(0, 3).fill_(-100);
  EXPECT_FALSE(language(7)->counted(labels).defined());
  EXPECT_EQ(language(7, /*varies=*/true)->counted(labels).item<int64_t>(), 43);
}

TEST(LanguageTask, OutputsOfAnotherShapeAreAUsageError) {
  const Error error = testing::error_of([] {
    language(7)->mean_loss(at::randn({2, 7}), at::full({2, 5}, 0, at::kLong), 0);
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.reason(),
            "the model returns [2, 7] for tokens [2, 5], and train.task is language");
}

}  // namespace
}  // namespace saturate
