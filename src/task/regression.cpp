#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
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

// As Regression::sums() without the loss: absolute errors; by column the target, its square, the
// square of the error.
void add_values(const at::Tensor& found, const at::Tensor& target, int64_t columns, double* out) {
  const float *const x = found.const_data_ptr<float>(), *const y = target.const_data_ptr<float>();
  for (int64_t i = 0; i < found.numel(); ++i) {
    double* const column = out + 1 + i % columns;
    const double wanted = y[i], error = double(x[i]) - wanted;
    out[0] += std::abs(error);
    column[0] += wanted;
    column[columns] += wanted * wanted;
    column[2 * columns] += error * error;
  }
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
  int64_t totals() const override { return 2 + 3 * columns_; }

  // [2 + 3 columns] double: loss * N, absolute errors; by column the target, its square, the square
  // of the error.
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
    const at::Tensor first = at::stack({loss.to(at::kDouble) * labels.size(0), error.abs().sum()});
    return {at::cat({first, y.sum(0), y.square().sum(0), error.square().sum(0)})};
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
    if (metrics.totals.empty()) return;
    const double samples = metrics.totals[0], rows = samples * double(values_) / double(columns_);
    const double* const target = metrics.totals.data() + 2;
    double r2 = 0;
    for (int64_t i = 0; i < columns_; ++i)
      r2 += r2_of(rows, target[i], target[columns_ + i], target[2 * columns_ + i]);
    metrics.set("r2", r2 / double(columns_));
    metrics.set("mae", metrics.totals[1] / (samples * double(values_)));
  }

 private:
  // As r2_score(): of a constant target 1 if every output is it, else 0; unknown below two samples.
  static double r2_of(double count, double sum, double squares, double errors) {
    if (count < 2) return std::nan("");
    const double spread = squares - sum * (sum / count);
    // The rounding errors of the sums, which grow with the number of additions.
    if (spread <= 1e-14 * std::sqrt(count) * squares) return errors == 0 ? 1 : 0;
    return 1 - errors / spread;
  }

  const RegressionLoss loss_;
  const int64_t values_;
  const int64_t columns_;  // for "r2"
};

}  // namespace

std::unique_ptr<const Task> regression(RegressionLoss loss, int64_t values) {
  return std::make_unique<Regression>(loss, values);
}

}  // namespace saturate
