// A ResNet of nine layers for small images, laid out so that a CPU finishes soon: a 4x4 convolution of
// stride 2 leaves the full resolution at once, since every layer here runs at about the same FLOP/s
// and only their number counts. The global max pool and the scaled logits are those of D. Page's
// DAWNBench entry (https://github.com/davidcpage/cifar10-fast).
#include <ATen/ops/amax.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/modules/linear.h>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/module_model.h"

namespace saturate {
namespace {

constexpr double kLogitScale = 0.125;

class ResNet9 : public torch::nn::Module {
 public:
  ResNet9(double width, int64_t classes)
      : stem_(register_module("stem", ConvNorm(3, scaled(32, width), ConvShape{4, 2, 1}))),
        conv1_(register_module("conv1", ConvNorm(scaled(32, width), scaled(64, width)))),
        residual1_(register_module("residual1", ConvNorm(scaled(64, width), scaled(64, width)))),
        conv2_(register_module("conv2", ConvNorm(scaled(64, width), scaled(128, width)))),
        residual2_(register_module("residual2", ConvNorm(scaled(128, width), scaled(128, width)))),
        conv3_(register_module("conv3", ConvNorm(scaled(128, width), scaled(256, width)))),
        residual3a_(
            register_module("residual3a", ConvNorm(scaled(256, width), scaled(256, width)))),
        residual3b_(
            register_module("residual3b", ConvNorm(scaled(256, width), scaled(256, width)))),
        fc_(register_module(
            "fc",
            torch::nn::Linear(torch::nn::LinearOptions(scaled(256, width), classes).bias(false)))) {
  }

  at::Tensor forward(const at::Tensor& images) {  // [N, 3, H, W] to [N, classes]
    at::Tensor x = conv1_(stem_(images));         // [N, 64, H/2, W/2]
    x = at::max_pool2d(x + residual1_(x), 2);
    x = conv2_(x);  // [N, 128, H/4, W/4]
    x = at::max_pool2d(x + residual2_(x), 2);
    x = conv3_(x);  // [N, 256, H/8, W/8]
    x = x + residual3b_(residual3a_(x));
    return fc_(at::amax(x, {2, 3})) * kLogitScale;
  }

 private:
  ConvNorm stem_, conv1_, residual1_, conv2_, residual2_, conv3_, residual3a_, residual3b_;
  torch::nn::Linear fc_;
};

}  // namespace

std::unique_ptr<Model> make_resnet9(const ModelOptions& options, const ImageShape& shape) {
  require_size(options, shape, 16);
  return make_module_model<ResNet9>(options.width, shape.classes);
}

}  // namespace saturate
