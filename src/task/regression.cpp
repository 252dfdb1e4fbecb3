#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "saturate/data/error.h"
#include "saturate/task.h"
#include "task/label_shape.h"

namespace saturate {
namespace {

constexpr int64_t kMostColumns = 1024;

// On a CPU the sums of few values are made in one pass: each operator takes longer than the values.
constexpr int64_t kFew = 1 << 14;

bool are_few(const at::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == at::kFloat && values.is_contiguous() &&
         values.numel() <= kFew;
}

// A double is the sum of its leading 24 bits, which any float has, and of the rest. Targets that
// hardly differ, for which a variance from sums of squares cancels, have leading parts of almost
// one exponent: up to kExact of these, in any order, add up without rounding.
constexpr int64_t kLeading = ~((int64_t{1} << 29) - 1);
constexpr double kExact = 1 << 28;

double leading(double value) {
  return std::bit_cast<double>(std::bit_cast<int64_t>(value) & kLeading);
}
at::Tensor leading(const at::Tensor& values) {
  return values.view(at::kLong).bitwise_and(kLeading).view(at::kDouble);
}

// As Regression::sums() without the loss. Floats have no rest.
void add_values(const at::Tensor& found, const at::Tensor& target, int64_t columns, double* out) {
  const float *const x = found.const_data_ptr<float>(), *const y = target.const_data_ptr<float>();
  for (int64_t i = 0; i < found.numel(); ++i) {
    double* const column = out + 1 + i % columns;
    const double wanted = y[i], square = wanted * wanted, first = leading(square),
                 error = double(x[i]) - wanted;
    out[0] += std::abs(error);
    column[0] += wanted;
    column[2 * columns] += first;
    column[3 * columns] += square - first;
    column[4 * columns] += error * error;
  }
}

// The sum of two doubles, for about 106 bits (Dekker 1971, https://doi.org/10.1007/BF01397083).
struct Wide {
  double high = 0, low = 0;
};

Wide exact_sum(double a, double b) {
  const double sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

Wide exact_product(double a, double b) {
  return {a * b, std::fma(a, b, -(a * b))};
}

Wide wide_sum(const Wide& a, const Wide& b) {
  const Wide high = exact_sum(a.high, b.high), low = exact_sum(a.low, b.low);
  const Wide part = exact_sum(high.high, high.low + low.high);
  return exact_sum(part.high, part.low + low.low);
}

Wide wide_product(const Wide& a, const Wide& b) {
  const Wide product = exact_product(a.high, b.high);
  return exact_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

// The sums over one column's targets and errors, at out[0], out[columns] ...
struct ColumnSums {
  Wide target, square;
  double errors = 0;
  bool are_floats = false;
};

ColumnSums column_sums(const double* column, int64_t columns) {
  return {exact_sum(column[0], column[columns]),
          exact_sum(column[2 * columns], column[3 * columns]), column[4 * columns],
          column[columns] == 0};
}

// A bound for the rounding errors of `count` times the variance, relative to the sum of squares.
double rounding_of(double count, bool are_floats) {
  if (count > kExact) return 1e-14 * std::sqrt(count);
  return are_floats ? 0x1p-98 : 0x1p-72 * count;  // the rest of a double's square is rounded
}

// As r2_score(): of a constant target 1 if every output is it, else 0; unknown below two samples.
double r2_of(double count, const ColumnSums& sums) {
  if (count < 2) return std::nan("");
  const Wide square_of_sum = wide_product(sums.target, sums.target),
             times_count = wide_sum(wide_product({count, 0}, sums.square),
                                    {-square_of_sum.high, -square_of_sum.low});
  const double spread = times_count.high / count,
               rounding = rounding_of(count, sums.are_floats) * sums.square.high;
  if (spread <= rounding) return sums.errors == 0 ? 1 : 0;
  return 1 - sums.errors / spread;
}

class Regression : public Task {
 public:
  Regression(RegressionLoss loss, int64_t values)
      : loss_(loss), values_(values), columns_(values <= kMostColumns ? values : 1) {}

  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double /*smoothing*/) const override {
    const auto [found, target] = alike(outputs, labels);
    switch (loss_) {
      case RegressionLoss::kL1:
        return at::l1_loss(found, target);
      case RegressionLoss::kHuber:
        return at::huber_loss(found, target);
      case RegressionLoss::kMse:
        break;
    }
    return at::mse_loss(found, target);
  }

  std::vector<MetricName> metric_names() const override {
    return {{.name = "r2"}, {.name = "mae", .higher_is_better = false}};
  }
  int64_t totals() const override { return 2 + 5 * columns_; }

  // [2 + 5 columns] double: loss * N, absolute errors; by column the target's leading part and
  // rest, those of its square, and the square of the error.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    const auto [found, target] = alike(outputs, labels);
    if (are_few(found) && are_few(target) && loss.is_cpu() && found.numel() % columns_ == 0) {
      const at::Tensor totals = at::zeros({this->totals()}, at::kDouble);
      auto* const sum = totals.mutable_data_ptr<double>();
      sum[0] = loss.item<double>() * double(labels.size(0));
      add_values(found, target, columns_, sum + 1);
      return {totals};
    }
    const at::Tensor y = target.to(at::kDouble).reshape({-1, columns_}),
                     error = found.to(at::kDouble).reshape({-1, columns_}) - y;
    const at::Tensor first = leading(y), rest = y - first, square = first.square(),
                     square_first = leading(square),
                     square_rest = (square - square_first) + rest * (first + y);
    const at::Tensor whole = at::stack({loss.to(at::kDouble) * labels.size(0), error.abs().sum()});
    return {at::cat({whole, first.sum(0), rest.sum(0), square_first.sum(0), square_rest.sum(0),
                     error.square().sum(0)})};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    const at::Tensor host = sums.at(0).cpu();  // waits for the device
    const double* const sum = host.const_data_ptr<double>();
    Metrics metrics;
    metrics.loss = samples > 0 ? sum[0] / double(samples) : std::nan("");
    metrics.totals.assign(sum, sum + host.numel());
    metrics.totals[0] = double(samples);
    derive(metrics);
    return metrics;
  }

  // totals: as sums(), with the samples in place of the loss.
  void derive(Metrics& metrics) const override {
    if (std::ssize(metrics.totals) != totals()) return;
    const double samples = metrics.totals[0], rows = samples * double(values_) / double(columns_);
    double r2 = 0;
    for (int64_t i = 0; i < columns_; ++i)
      r2 += r2_of(rows, column_sums(metrics.totals.data() + 2 + i, columns_));
    metrics.set("r2", r2 / double(columns_));
    metrics.set("mae", metrics.totals[1] / (samples * double(values_)));
  }

 private:
  const RegressionLoss loss_;
  const int64_t values_;
  const int64_t columns_;  // for "r2"
};

}  // namespace

std::unique_ptr<const Task> regression(RegressionLoss loss, int64_t values) {
  return std::make_unique<Regression>(loss, values);
}

}  // namespace saturate
