// With x [N, C, H, W], n values a channel over all processes, y = (x - mean) / sqrt(var + eps):
//   forward   out = y * weight + bias
//   backward  dx = weight / sqrt(var + eps) * (dout - sum(dout) / n - y * sum(dout * y) / n)
// where mean, var and the sums of dout run over all processes, and the gradients of weight and
// bias over each process's own, since the reducer sums those.
#include "saturate/sync_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

namespace saturate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor by_channel(const at::Tensor& row) {
  return row.view({1, -1, 1, 1});
}

at::Tensor over_channels(const at::Tensor& x) {
  return x.sum({0, 2, 3}, /*keepdim=*/false, at::kDouble);
}

struct Statistics {
  at::Tensor mean, variance;  // [C] double, over all processes; the variance biased
  double count;               // values a channel
};

// Each process's mean, sum of squares about it, and count, put together as in Chan, Golub and
// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
Statistics statistics_of(const at::Tensor& x, Group& group) {
  const int64_t channels = x.size(1), own = x.size(0) * x.size(2) * x.size(3);
  const at::Tensor mean = over_channels(x) / double(std::max<int64_t>(own, 1));
  const at::Tensor centred = x - by_channel(mean.to(x.scalar_type()));
  const at::Tensor row =
      at::cat({mean, over_channels(centred * centred), at::full({1}, double(own), mean.options())});
  const at::Tensor rows = group.gather(row);  // [world, 2 C + 1]
  const at::Tensor means = rows.narrow(1, 0, channels);
  const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
  Statistics found;
  found.count = counts.sum().item<double>();
  found.mean = (means * counts).sum(0) / found.count;
  const at::Tensor between = means - found.mean;
  found.variance =
      (rows.narrow(1, channels, channels).sum(0) + (counts * between * between).sum(0)) /
      found.count;
  return found;
}

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean,
                            const at::Tensor& inverse, double count, int64_t group) {
    const at::Tensor y = (x - by_channel(mean)) * by_channel(inverse);
    context->save_for_backward({y, weight, inverse});
    context->saved_data["count"] = count;
    context->saved_data["group"] = group;
    return y * by_channel(weight) + by_channel(bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], &weight = saved[1], &inverse = saved[2];
    const at::Tensor out = gradients[0].to(y.scalar_type());
    auto& group = *reinterpret_cast<Group*>(context->saved_data["group"].toInt());
    const double count = context->saved_data["count"].toDouble();
    const at::Tensor to_bias = over_channels(out), to_weight = over_channels(out * y);
    const at::Tensor sums = at::cat({to_bias, to_weight});
    group.sum(sums);
    const auto means = (sums / count).to(y.scalar_type()).chunk(2);
    const at::Tensor to_x =
        (out - by_channel(means[0]) - y * by_channel(means[1])) * by_channel(weight * inverse);
    return {to_x, to_weight.to(weight.scalar_type()), to_bias.to(weight.scalar_type()), {}, {}, {},
            {}};
  }
};

}  // namespace

at::Tensor SyncBatchNorm::normalise(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias, const at::Tensor& running_mean,
                                    const at::Tensor& running_var, double momentum, double eps) {
  const at::Tensor x = input.scalar_type() == at::kFloat ? input : input.to(at::kFloat);
  at::Tensor mean, inverse;
  double count = 0;
  {
    const at::NoGradGuard no_grad;
    const Statistics found = statistics_of(x.detach(), group_);
    count = found.count;
    mean = found.mean.to(x.scalar_type());
    inverse = (found.variance + eps).rsqrt().to(x.scalar_type());
    const double unbiased = count > 1 ? count / (count - 1) : 1;
    const auto follow = [&](const at::Tensor& running, const at::Tensor& now) {
      running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
    };
    if (count > 0) {  // else no process has an image
      follow(running_mean, found.mean);
      follow(running_var, found.variance * unbiased);
    }
  }
  const at::Tensor y =
      Normalise::apply(x, weight, bias, mean, inverse, count, int64_t(intptr_t(&group_)));
  return y.to(input.scalar_type());
}

}  // namespace saturate
