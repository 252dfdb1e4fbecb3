// A nine-layer residual network for small images that learns in few epochs, after K. Jordan's "94%
// on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv 2404.00498): a frozen 2x2 convolution whitens
// the images, convolutions start as the identity, and each stage pools right after its first one.
// The residual branches, the global max pool and the logits' scale are from D. Page's DAWNBench
// entry (https://github.com/davidcpage/cifar10-fast).
#include <ATen/ops/amax.h>
#include <torch/nn/modules/linear.h>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/whitening.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

constexpr double kLogitScale = 0.125;

class ResNet9 : public WhitenedChain {  // [N, 3, H, W] to [N, classes]
 public:
  ResNet9(double width, int64_t classes)
      : ResNet9(scaled(64, width), scaled(256, width), scaled(256, width), classes) {}

  ResNet9(int64_t width1, int64_t width2, int64_t width3, int64_t classes)
      : conv1_(register_module("conv1", ConvNorm(kStemChannels, width1, Pool::kMax2))),
        residual1_(register_module("residual1", ConvNorm(width1, width1))),
        conv2_(register_module("conv2", ConvNorm(width1, width2, Pool::kMax2))),
        residual2_(register_module("residual2", ConvNorm(width2, width2))),
        conv3_(register_module("conv3", ConvNorm(width2, width3, Pool::kMax2))),
        residual3a_(register_module("residual3a", ConvNorm(width3, width3))),
        residual3b_(register_module("residual3b", ConvNorm(width3, width3))),
        fc_(register_module(
            "fc", torch::nn::Linear(torch::nn::LinearOptions(width3, classes).bias(false)))) {
    for (auto unit : {conv1_, residual1_, conv2_, residual2_, conv3_, residual3a_, residual3b_})
      unit->start_as_identity();
    add_stages();
  }

 private:
  void add_stages() {
    using at::Tensor;
    add_stage([this](const Tensor& images) { return stem(images).relu_(); });
    add_module_stage(conv1_);  // [N, 64, H/2, W/2]
    add_stage([this](const Tensor& x) { return x + residual1_(x); }, residual1_);
    add_module_stage(conv2_);  // [N, 256, H/4, W/4]
    add_stage([this](const Tensor& x) { return x + residual2_(x); }, residual2_);
    add_module_stage(conv3_);  // [N, 256, H/8, W/8]
    add_stage([this](const Tensor& x) { return x + residual3b_(residual3a_(x)); }, residual3a_,
              residual3b_);
    add_stage([this](const Tensor& x) { return fc_(at::amax(x, {2, 3})) * kLogitScale; });
  }

  ConvNorm conv1_, residual1_, conv2_, residual2_, conv3_, residual3a_, residual3b_;
  torch::nn::Linear fc_;
};

}  // namespace

std::unique_ptr<Model> make_resnet9(const ModelOptions& options, const ModelInput& input) {
  require_size(options, input, 16);
  return make_module_model<ResNet9>(options.width, input.outputs);
}

}  // namespace saturate
