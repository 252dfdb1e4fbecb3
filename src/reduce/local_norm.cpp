// With x [N, C, H, W], n values a channel over all processes, y = (x - mean) / sqrt(var + eps):
//   forward   out = y * weight + bias
//   backward  dx = weight / sqrt(var + eps) * (dout - sum(dout) / n - y * sum(dout * y) / n)
// where mean, var and the sums of dout are over all processes, and the gradients of weight and bias
// over each process's own values, since the reducer sums those.
#include "reduce/local_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>

namespace saturate {
namespace {

int64_t values_per_channel(const at::Tensor& x) {
  return x.size(0) * x.size(2) * x.size(3);
}

at::Tensor by_channel(const at::Tensor& row) {
  return row.view({1, -1, 1, 1});
}

at::Tensor over_channels(const at::Tensor& x) {
  return x.sum({0, 2, 3}, /*keepdim=*/false, at::kDouble);
}

// A row holds means, sums of squares about them, and the count, merged as in Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
// `kept` is y.
class CpuNorm : public LocalNorm {
 public:
  at::Tensor prepared(const at::Tensor& input) const override { return input.to(at::kFloat); }

  at::Tensor statistics(const at::Tensor& x, double) const override {
    const int64_t own = values_per_channel(x);
    const at::Tensor mean = over_channels(x) / double(std::max<int64_t>(own, 1));
    const at::Tensor centred = x - by_channel(mean.to(x.scalar_type()));
    return at::cat(
        {mean, over_channels(centred * centred), at::full({1}, double(own), mean.options())});
  }

  Joint join(const at::Tensor& x, const at::Tensor& rows, const RunningStatistics& running,
             double eps) const override {
    const int64_t channels = x.size(1);
    const at::Tensor means = rows.narrow(1, 0, channels);
    const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
    const double count = counts.sum().item<double>();
    const at::Tensor mean = (means * counts).sum(0) / count;
    const at::Tensor between = means - mean;
    const at::Tensor variance =
        (rows.narrow(1, channels, channels).sum(0) + (counts * between * between).sum(0)) / count;
    const double unbiased = count > 1 ? count / (count - 1) : 1;
    const auto follow = [&](const at::Tensor& statistic, const at::Tensor& now) {
      statistic.mul_(1 - running.momentum).add_(now.to(statistic.scalar_type()), running.momentum);
    };
    if (count > 0) {
      follow(running.mean, mean);
      follow(running.var, variance * unbiased);
    }
    return {mean.to(x.scalar_type()), (variance + eps).rsqrt().to(x.scalar_type()),
            counts.flatten()};
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const Joint& joint, at::Tensor& kept) const override {
    kept = (x - by_channel(joint.mean)) * by_channel(joint.inverse);
    return kept * by_channel(weight) + by_channel(bias);
  }

  at::Tensor prepared_gradient(const at::Tensor& gradient, const at::Tensor& kept) const override {
    return gradient.to(kept.scalar_type());
  }

  Sums sums(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& weight,
            const Joint&) const override {
    const at::Tensor to_bias = over_channels(gradient), to_weight = over_channels(gradient * kept);
    return {at::cat({to_bias, to_weight}), to_weight.to(weight.scalar_type()),
            to_bias.to(weight.scalar_type())};
  }

  at::Tensor to_input(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& weight,
                      const Joint& joint, const at::Tensor& row) const override {
    const double count = joint.counts.sum().item<double>();
    const auto means = (row / count).to(kept.scalar_type()).chunk(2);
    return (gradient - by_channel(means[0]) - kept * by_channel(means[1])) *
           by_channel(weight * joint.inverse);
  }
};

// A row holds means, 1 / sqrt(var + eps), and the count, all in float. `kept` is x.
class GpuNorm : public LocalNorm {
 public:
  at::Tensor prepared(const at::Tensor& input) const override {
    const bool taken =
        input.scalar_type() == at::kFloat || at::isReducedFloatingType(input.scalar_type());
    const at::Tensor x = taken ? input : input.to(at::kFloat);
    return x.contiguous(x.suggest_memory_format());
  }

  at::Tensor statistics(const at::Tensor& x, double eps) const override {
    const int64_t channels = x.size(1);
    const auto options = x.options().dtype(at::kFloat);
    if (x.numel() > 0) {
      const auto [mean, inverse] = at::batch_norm_stats(x, eps);
      return at::cat({mean, inverse, at::full({1}, double(values_per_channel(x)), options)});
    }
    const at::Tensor row = at::zeros({2 * channels + 1}, options);
    row.narrow(0, channels, channels).fill_(1);
    row.select(0, 2 * channels).fill_(kNoValue);
    return row;
  }

  Joint join(const at::Tensor& x, const at::Tensor& rows, const RunningStatistics& running,
             double eps) const override {
    const int64_t channels = x.size(1);
    const at::Tensor counts = rows.select(1, 2 * channels);
    const auto gather = [&](const at::Tensor& running_mean, const at::Tensor& running_var) {
      return at::batch_norm_gather_stats_with_counts(
          x, rows.narrow(1, 0, channels), rows.narrow(1, channels, channels), running_mean,
          running_var, running.momentum, eps, counts);
    };
    const auto with = [&](const auto& found) {
      return Joint{std::get<0>(found), std::get<1>(found), counts.to(at::kInt).contiguous()};
    };
    if (values_per_channel(x) > 1 && running.mean.scalar_type() == at::kFloat)
      return with(gather(running.mean, running.var));
    // With fewer than two values in total the operator's variance is NaN.
    const auto copy = [](const at::Tensor& statistic) {
      return statistic.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    };
    const at::Tensor mean = copy(running.mean), var = copy(running.var);
    const Joint joint = with(gather(mean, var));
    const at::Tensor total = counts.sum(), any = total.ge(1);
    const at::Tensor faded = running.var * (1 - running.momentum);
    running.mean.copy_(at::where(any, mean, running.mean));
    running.var.copy_(at::where(total.gt(1), var, at::where(any, faded, running.var)));
    return joint;
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const Joint& joint, at::Tensor& kept) const override {
    kept = x;
    if (x.numel() == 0) return at::empty_like(x);
    return at::batch_norm_elemt(x, weight.to(at::kFloat), bias.to(at::kFloat), joint.mean,
                                joint.inverse, /*eps=*/0);  // inverse includes eps
  }

  at::Tensor prepared_gradient(const at::Tensor& gradient, const at::Tensor& kept) const override {
    return gradient.to(kept.scalar_type()).contiguous(kept.suggest_memory_format());
  }

  Sums sums(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& weight,
            const Joint& joint) const override {
    if (kept.numel() == 0)
      return {at::zeros({2 * kept.size(1)}, joint.mean.options()), at::zeros_like(weight),
              at::zeros_like(weight)};
    const auto [sum, sum_centred, to_weight, to_bias] = at::batch_norm_backward_reduce(
        gradient, kept, joint.mean, joint.inverse, weight.to(at::kFloat), true, true, true);
    return {at::cat({sum, sum_centred}), to_weight.to(weight.scalar_type()),
            to_bias.to(weight.scalar_type())};
  }

  at::Tensor to_input(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& weight,
                      const Joint& joint, const at::Tensor& row) const override {
    if (kept.numel() == 0) return at::empty_like(kept);
    const auto halves = row.chunk(2);
    return at::batch_norm_backward_elemt(gradient, kept, joint.mean, joint.inverse,
                                         weight.to(at::kFloat), halves[0], halves[1], joint.counts);
  }

 private:
  // The count for a process without images: gather_stats_with_counts divides by the running sum of
  // counts, and torch.nn.SyncBatchNorm filters such rows out, which blocks the host. It is
  // negligible beside a real count, and 0 as an integer.
  static constexpr double kNoValue = 1e-30;
};

}  // namespace

const LocalNorm& local_norm(const at::Device& device) {
  static const CpuNorm cpu;
  static const GpuNorm gpu;
  if (device.is_cuda()) return gpu;
  return cpu;
}

}  // namespace saturate
