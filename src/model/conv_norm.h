// relu(BatchNorm(convolution)): the unit of the small networks, and its variants.
#pragma once

#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>

#include "saturate/batch_norm.h"

namespace saturate {

enum class Pool { kNone, kMax2 };

struct ConvNormOptions {
  Pool pool = Pool::kNone;
  bool gelu = false;                  // instead of ReLU
  bool scale = true;                  // false: BatchNorm's weights stay 1
  double momentum = 0.1, eps = 1e-5;  // BatchNorm's
};

// 3x3, stride 1, "same" padding: [N, in, H, W] to [N, out, H, W], or [N, out, H/2, W/2] with
// pooling.
class ConvNormImpl : public torch::nn::Module {
 public:
  ConvNormImpl(int64_t in, int64_t out, const ConvNormOptions& options)
      : options_(options),
        conv_(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
        norm_(torch::nn::BatchNormOptions(out).momentum(options.momentum).eps(options.eps)) {
    register_module("conv", conv_);
    register_module("norm", norm_);
    if (!options.scale) norm_->weight.requires_grad_(false);
  }
  ConvNormImpl(int64_t in, int64_t out, Pool pool = Pool::kNone)
      : ConvNormImpl(in, out, ConvNormOptions{.pool = pool}) {}

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = conv_(x);
    // Pooling first leaves a quarter of the work.
    if (options_.pool == Pool::kMax2) y = at::max_pool2d(y, 2);
    y = norm_(y);
    return options_.gelu ? at::gelu(y) : y.relu_();
  }

  // Copies as many input channels to the first output channels as possible.
  void start_as_identity() {
    const auto& weight = conv_->weight;  // [out, in, 3, 3]
    torch::nn::init::dirac_(weight.narrow(0, 0, std::min(weight.size(0), weight.size(1))));
  }

 private:
  ConvNormOptions options_;
  torch::nn::Conv2d conv_;
  BatchNorm2d norm_;
};
TORCH_MODULE(ConvNorm);

}  // namespace saturate
