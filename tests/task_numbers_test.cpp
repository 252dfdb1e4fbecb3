// Regression and several labels per sample: losses by their formulas, metrics as scikit-learn's.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "saturate/task.h"
#include "task/class_counts.h"
#include "tests/data_testing.h"
#include "tests/formula.h"

namespace saturate {
namespace {

using testing::error_of;

// Metrics of both halves of the batch, added up.
Metrics measured(const Task& task, const at::Tensor& outputs, const at::Tensor& labels,
                 bool merged) {
  RunningMetrics running(task), rest(task);
  const int64_t half = outputs.size(0) / 2;
  const auto add = [&](RunningMetrics& to, int64_t from, int64_t count) {
    const at::Tensor some = outputs.narrow(0, from, count), target = labels.narrow(0, from, count);
    to.add(task.mean_loss(some, target, 0), some, target);
  };
  add(running, 0, half);
  add(merged ? rest : running, half, outputs.size(0) - half);
  Metrics all = running.read();
  if (!merged) return all;
  all.merge(rest.read());
  task.derive(all);
  return all;
}

TEST(Regression, LossesAreTheirFormulas) {
  at::manual_seed(1);
  const at::Tensor outputs = at::randn({4, 3}) * 2, labels = at::randn({4, 3}).to(at::kDouble);
  double squares = 0, absolutes = 0, huber = 0;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) {
      const double d = std::abs(outputs[i][j].item<float>() - float(labels[i][j].item<double>()));
      squares += d * d / 12;
      absolutes += d / 12;
      huber += (d < 1 ? d * d / 2 : d - 0.5) / 12;
    }
  const auto loss = [&](RegressionLoss kind) {
    return regression(kind, 3)->mean_loss(outputs, labels, 0).item<double>();
  };
  EXPECT_NEAR(loss(RegressionLoss::kMse), squares, 1e-6);
  EXPECT_NEAR(loss(RegressionLoss::kL1), absolutes, 1e-6);
  EXPECT_NEAR(loss(RegressionLoss::kHuber), huber, 1e-6);
}

// r2_score(y, f) and mean_absolute_error(y, f) of scikit-learn 1.9.1, for two numbers of each
// sample.
TEST(Regression, MetricsAreScikitLearns) {
  const at::Tensor y =
      at::tensor({3.f, -0.5f, 2.f, 7.f, 1.f, 4.f, 0.f, 1.f, 1.f, 1.f}).view({5, 2});
  const at::Tensor f =
      at::tensor({2.5f, 0.f, 2.f, 8.f, 1.5f, 3.f, 0.f, 2.f, 1.f, -1.f}).view({5, 2});
  const auto task = regression(RegressionLoss::kMse, 2);
  for (const bool merged : {false, true}) {
    const Metrics found = measured(*task, f, y, merged);
    EXPECT_EQ(found.samples, 5);
    EXPECT_NEAR(found.value("r2").value(), 0.8512286324786325, 1e-12);
    EXPECT_NEAR(found.value("mae").value(), 0.65, 1e-12);
    EXPECT_NEAR(found.loss, 0.775, 1e-6);
  }
  EXPECT_EQ(task->metric_names()[0].name, "r2");
}

// Few floats on a CPU are summed in one pass, others by torch's operators.
TEST(Regression, SumsOfOnePassAreThoseOfOperators) {
  for (const int64_t values : {1, 3, 1025}) {
    const auto task = regression(RegressionLoss::kMse, values);
    const at::Tensor outputs = testing::symmetric("outputs", {7, values}, 2),
                     labels = testing::symmetric("labels", {7, values}, 2).squeeze(-1),
                     loss = at::full({}, 0.25);
    const at::Tensor found = task->sums(loss, outputs, labels).at(0),
                     expected = task->sums(loss, outputs.to(at::kDouble), labels).at(0);
    EXPECT_EQ(found.numel(), task->totals());
    EXPECT_TRUE(at::allclose(found, expected, 1e-12, 1e-12)) << found << expected;
  }
}

TEST(Regression, OneOutputIsOfOneNumber) {
  const auto task = regression(RegressionLoss::kMse, 1);
  const at::Tensor y = at::tensor({1.f, 2.f, 3.f, 4.f});
  EXPECT_NEAR(measured(*task, y.unsqueeze(1), y, false).value("r2").value(), 1, 1e-12);
  EXPECT_NEAR(measured(*task, at::zeros({4, 1}) + 2.5, y, true).value("r2").value(), 0, 1e-12);
  EXPECT_EQ(measured(*task, at::zeros({4, 1}), at::zeros({4}) + 2, false).value("r2"), 0)
      << "a constant target";
  const Error error = error_of([&] { task->mean_loss(at::zeros({4, 2}), y, 0); });
  EXPECT_EQ(error.where(), "model.name");
  EXPECT_NE(error.reason().find("[4, 2] for a target of [4]"), std::string::npos);
}

// The target's numbers are far from 0, as years are.
TEST(Regression, R2OfLargeNumbersIsExact) {
  const auto task = regression(RegressionLoss::kMse, 1);
  const at::Tensor y = at::tensor({2001., 2002., 2003., 2004.}, at::kDouble);
  const Metrics found = measured(*task, (y + 0.5).unsqueeze(1), y, true);
  EXPECT_NEAR(found.value("r2").value(), 1 - 4 * 0.25 / 5, 1e-9);
}

// The sums' rounding errors are not the target's variance.
TEST(Regression, R2OfManyEqualNumbersIsZero) {
  const auto task = regression(RegressionLoss::kMse, 1);
  const at::Tensor target = at::zeros({32}) + 0.1f, outputs = at::zeros({32, 1});
  RunningMetrics running(*task);
  for (int i = 0; i < 3125; ++i) running.add(task->mean_loss(outputs, target, 0), outputs, target);
  EXPECT_EQ(running.read().value("r2"), 0);
}

// By the definition, in two passes.
double exact_r2(const at::Tensor& outputs, const at::Tensor& labels) {
  const at::Tensor y = labels.to(at::kDouble).contiguous(),
                   f = outputs.to(at::kDouble).contiguous();
  const double *const target = y.const_data_ptr<double>(), *const found =
                                                               f.const_data_ptr<double>();
  long double mean = 0, spread = 0, errors = 0;
  for (int64_t i = 0; i < y.numel(); ++i) mean += target[i];
  mean /= (long double)(y.numel());
  for (int64_t i = 0; i < y.numel(); ++i) {
    spread += (target[i] - mean) * (target[i] - mean);
    errors += ((long double)(found[i]) - target[i]) * ((long double)(found[i]) - target[i]);
  }
  return double(1 - errors / spread);
}

// R2 of many batches, half of them of another process.
double r2_of_batches(const at::Tensor& outputs, const at::Tensor& labels, int64_t batch) {
  const auto task = regression(RegressionLoss::kMse, 1);
  RunningMetrics own(*task), other(*task);
  for (int64_t at = 0, count; at < labels.size(0); at += count) {
    count = std::min(batch, labels.size(0) - at);
    const at::Tensor some = outputs.narrow(0, at, count), target = labels.narrow(0, at, count);
    (at / batch % 2 == 0 ? own : other).add(task->mean_loss(some, target, 0), some, target);
  }
  Metrics all = own.read();
  all.merge(other.read());
  task->derive(all);
  return all.value("r2").value();
}

// A few roundings of a float from each other, also on both sides of a power of two.
TEST(Regression, R2OfTargetsThatHardlyDifferIsExact) {
  constexpr int64_t kCount = 20000;
  const at::Tensor steps = at::arange(kCount).square() % 5 - 2;
  for (const double middle : {1000., 1024., -3e6, 3e-20, 0.1}) {
    const double rounding = std::nextafter(float(std::abs(middle)), HUGE_VALF) - std::abs(middle);
    const at::Tensor labels = (steps.to(at::kDouble) * rounding + middle).to(at::kFloat),
                     outputs = labels.roll(1).unsqueeze(1);
    const double expected = exact_r2(outputs, labels);
    EXPECT_LT(expected, 0.9);
    EXPECT_NEAR(r2_of_batches(outputs, labels, 64), expected, 1e-9) << middle;
    EXPECT_NEAR(r2_of_batches(outputs.to(at::kDouble), labels, 64), expected, 1e-9) << middle;
  }
  at::manual_seed(1);
  const at::Tensor labels = (at::randn({1000}, at::kDouble) * 1e-7 + 1) / 3,
                   outputs = labels.roll(1).unsqueeze(1);
  EXPECT_NEAR(r2_of_batches(outputs, labels, 7), exact_r2(outputs, labels), 1e-3) << "doubles";
}

TEST(Regression, OneTargetOfManyThatDiffersByARoundingCounts) {
  const at::Tensor labels = at::full({100'000}, 0.1f);
  labels[777] = std::nextafter(0.1f, 1.f);
  EXPECT_NEAR(r2_of_batches(labels.unsqueeze(1), labels, 1000), 1, 1e-12);
  const at::Tensor outputs = at::full({100'000, 1}, 0.1f);
  EXPECT_NEAR(r2_of_batches(outputs, labels, 1000), exact_r2(outputs, labels), 1e-4);
  EXPECT_LT(r2_of_batches(outputs, labels, 1000), 0) << "not a constant target";
}

TEST(Regression, R2OfManyEqualDoublesIsZero) {
  for (const int64_t count : {2, 3, 1000}) {
    const at::Tensor labels = at::full({count}, 0.1, at::kDouble);
    EXPECT_EQ(r2_of_batches(at::zeros({count, 1}, at::kDouble), labels, 3), 0) << count;
    EXPECT_EQ(r2_of_batches(labels.unsqueeze(1), labels, 3), 1) << count;
  }
}

// Ties, a label that no sample has, and one that all have; average_precision_score and f1_score.
TEST(Multilabel, MetricsAreScikitLearns) {
  const at::Tensor labels =
      at::tensor({1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1}, at::kLong)
          .view({5, 4});
  const at::Tensor scores =
      at::tensor({0.9f, -0.2f, 0.4f,  2.f,  0.3f, 0.8f, -1.f, 1.f,   0.3f, 0.1f,
                  0.5f, -0.5f, -0.7f, 0.8f, 0.2f, 3.f,  0.3f, -0.3f, 0.f,  0.1f})
          .view({5, 4});
  const auto task = multilabel(4);
  Metrics found = measured(*task, scores, labels, true);
  EXPECT_NEAR(found.value("f1").value(), 0.6031746031746031, 1e-12);
  EXPECT_FALSE(found.value("map"));
  KeptOutputs kept;
  kept.add(scores.narrow(0, 0, 2), labels.narrow(0, 0, 2));
  kept.add(scores.narrow(0, 2, 3), labels.narrow(0, 2, 3));
  kept.finish(*task, kept.rows(), found);
  EXPECT_NEAR(found.value("map").value(), 0.675, 1e-12);
  EXPECT_EQ(found.values[0].name, "map");
  EXPECT_NEAR(task->mean_loss(scores, labels, 0).item<double>(), 0.5722694221107931, 1e-6);
}

TEST(Multilabel, OtherTargetsThanZeroAndOneAreAnError) {
  const auto task = multilabel(2);
  const at::Tensor right = at::tensor({0, 1, 1, 0}, at::kByte).view({2, 2}),
                   wrong = at::tensor({0, 1, 255, 2}, at::kByte).view({2, 2});
  EXPECT_EQ(measured(*task, at::zeros({2, 2}), right, false).totals.size(), 6u);
  const Error error = error_of([&] { measured(*task, at::zeros({2, 2}), wrong, false); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("2 numbers of the targets are neither 0 nor 1"), std::string::npos)
      << error.reason();
  EXPECT_THROW(measured(*task, at::zeros({2, 2}), at::zeros({2, 2}) + 0.5, false), Error);
}

}  // namespace
}  // namespace saturate
