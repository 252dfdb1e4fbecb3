// relu(BatchNorm(convolution)): the unit that the small networks are made of.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

namespace saturate {

// Stride 1 and "same" padding unless told: [N, in, H, W] to [N, out, H, W].
struct ConvShape {
  int64_t kernel = 3, stride = 1, padding = 1;
};

class ConvNormImpl : public torch::nn::Module {
 public:
  ConvNormImpl(int64_t in, int64_t out, ConvShape shape = {})
      : conv_(torch::nn::Conv2dOptions(in, out, shape.kernel)
                  .stride(shape.stride)
                  .padding(shape.padding)
                  .bias(false)),
        norm_(out) {
    register_module("conv", conv_);
    register_module("norm", norm_);
  }
  at::Tensor forward(const at::Tensor& x) { return norm_(conv_(x)).relu_(); }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};
TORCH_MODULE(ConvNorm);

}  // namespace saturate
