// MobileNetV2 (https://arxiv.org/abs/1801.04381) as in torchvision: the same names and construction
// order, so that the same seed gives the same weights.
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/hardtanh.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "model/factories.h"
#include "model/stages.h"
#include "saturate/batch_norm.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

namespace nn = torch::nn;

// The nearest multiple of 8, but at least 9/10 of the width.
int64_t channels_of(int64_t channels, double width) {
  const double wanted = double(channels) * width;
  const int64_t rounded = std::max<int64_t>(8, int64_t(wanted + 4) / 8 * 8);
  return double(rounded) < 0.9 * wanted ? rounded + 8 : rounded;
}

// relu6(BatchNorm(convolution)): [N, in, H, W] to [N, out, H / stride, W / stride].
class ConvNorm6Impl : public nn::Module {
 public:
  ConvNorm6Impl(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t groups = 1)
      : conv_(register_module("0", nn::Conv2d(nn::Conv2dOptions(in, out, kernel)
                                                  .stride(stride)
                                                  .padding(kernel / 2)
                                                  .groups(groups)
                                                  .bias(false)))),
        norm_(register_module("1", BatchNorm2d(out))) {}

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm_(conv_(x));
    return at::hardtanh_(y, 0, 6);
  }

 private:
  nn::Conv2d conv_;
  BatchNorm2d norm_;
};
TORCH_MODULE(ConvNorm6);

// Expands channels by a 1x1 convolution, applies a depthwise 3x3 convolution, and projects back.
class InvertedResidualImpl : public nn::Module {
 public:
  InvertedResidualImpl(int64_t in, int64_t out, int64_t stride, int64_t expansion)
      : shortcut_(stride == 1 && in == out) {
    const int64_t hidden = in * expansion;
    if (expansion != 1) conv_->push_back(ConvNorm6(in, hidden, 1));
    conv_->push_back(ConvNorm6(hidden, hidden, 3, stride, /*groups=*/hidden));
    conv_->push_back(nn::Conv2d(nn::Conv2dOptions(hidden, out, 1).bias(false)));
    conv_->push_back(BatchNorm2d(out));
    register_module("conv", conv_);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = conv_->forward(x);
    return shortcut_ ? x + y : y;
  }

 private:
  bool shortcut_;
  nn::Sequential conv_;
};
TORCH_MODULE(InvertedResidual);

struct Repeats {
  int64_t expansion, channels, blocks, stride;
};
constexpr Repeats kGroups[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                               {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};

class MobileNetV2 : public Chain {  // [N, 3, H, W] to [N, classes]
 public:
  MobileNetV2(double width, double dropout, int64_t classes) : dropout_(dropout) {
    int64_t channels = channels_of(32, width);
    add(ConvNorm6(3, channels, 3, 2));
    for (const Repeats& group : kGroups) {
      for (int64_t i = 0; i < group.blocks; ++i) {
        const int64_t out = channels_of(group.channels, width);
        add(InvertedResidual(channels, out, i == 0 ? group.stride : 1, group.expansion));
        channels = out;
      }
    }
    const int64_t last = channels_of(1280, std::max(1.0, width));
    add(ConvNorm6(channels, last, 1));
    register_module("features", features_);
    nn::Sequential classifier;
    fc_ = nn::Linear(last, classes);
    classifier->push_back("1", fc_);  // "0" is dropout, without weights
    register_module("classifier", classifier);
    add_stage([this](const at::Tensor& x) {
      const at::Tensor means = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
      return fc_(at::dropout(means, dropout_, is_training()));
    });
    initialise_convolutions();
    nn::init::normal_(fc_->weight, 0, 0.01);
    nn::init::zeros_(fc_->bias);
  }

 private:
  template <class Holder>
  void add(Holder module) {
    features_->push_back(module);
    add_module_stage(module);
  }

  double dropout_;
  nn::Sequential features_;
  nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_mobilenet_v2(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<MobileNetV2>(options.width, options.dropout, input.outputs);
}

}  // namespace saturate
