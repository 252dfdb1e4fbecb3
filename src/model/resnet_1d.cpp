// ResNet-18 (https://arxiv.org/abs/1512.03385) for signals: torchvision's layers and names, with
// convolutions and pools along one dimension.
#include <ATen/ops/max_pool1d.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "model/factories.h"
#include "model/stages.h"
#include "saturate/batch_norm.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

torch::nn::Conv1d signal_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv1d(
      torch::nn::Conv1dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// BatchNorm of [N, C, L].
at::Tensor normed(BatchNorm2d& norm, const at::Tensor& x) {
  return norm(x.unsqueeze(-1)).squeeze(-1);
}

// The 1x1 convolution of a shortcut and its BatchNorm.
class SignalShortcutImpl : public torch::nn::Module {
 public:
  SignalShortcutImpl(int64_t in, int64_t out, int64_t stride)
      : conv_(register_module("0", signal_conv(in, out, 1, stride))),
        norm_(register_module("1", BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) { return normed(norm_, conv_(x)); }

 private:
  torch::nn::Conv1d conv_;
  BatchNorm2d norm_;
};
TORCH_MODULE(SignalShortcut);

class SignalBlockImpl : public torch::nn::Module {
 public:
  SignalBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1_(register_module("conv1", signal_conv(in, out, 3, stride))),
        bn1_(register_module("bn1", BatchNorm2d(out))),
        conv2_(register_module("conv2", signal_conv(out, out, 3, 1))),
        bn2_(register_module("bn2", BatchNorm2d(out))) {
    if (stride != 1 || in != out)
      downsample_ = register_module("downsample", SignalShortcut(in, out, stride));
  }
  at::Tensor forward(const at::Tensor& x) {  // [N, in, L] to [N, out, L / stride]
    at::Tensor y = normed(bn2_, conv2_(normed(bn1_, conv1_(x)).relu_()));
    y += downsample_ ? downsample_(x) : x;
    return y.relu_();
  }

 private:
  torch::nn::Conv1d conv1_;
  BatchNorm2d bn1_;
  torch::nn::Conv1d conv2_;
  BatchNorm2d bn2_;
  SignalShortcut downsample_{nullptr};
};
TORCH_MODULE(SignalBlock);

class ResNet1d : public Chain {  // [N, C, L], or [N, L] with one channel, to [N, classes]
 public:
  ResNet1d(int64_t channels_in, double width, int64_t classes) {
    int64_t channels = scaled(64, width);
    conv1_ = register_module("conv1", signal_conv(channels_in, channels, 7, 2));
    bn1_ = register_module("bn1", BatchNorm2d(channels));
    add_stage(
        [this](const at::Tensor& signals) {
          const at::Tensor x = signals.dim() == 2 ? signals.unsqueeze(1) : signals;
          return at::max_pool1d(normed(bn1_, conv1_(x)).relu_(), 3, /*stride=*/2, /*padding=*/1);
        },
        bn1_);
    for (int stage = 0; stage < 4; ++stage) {
      const int64_t out = scaled(int64_t{64} << stage, width);
      torch::nn::Sequential layer;
      for (int i = 0; i < 2; ++i) {
        SignalBlock block(channels, out, stage > 0 && i == 0 ? 2 : 1);
        layer->push_back(block);
        add_module_stage(block);
        channels = out;
      }
      register_module("layer" + std::to_string(stage + 1), layer);
    }
    fc_ = register_module("fc", torch::nn::Linear(channels, classes));
    add_stage([this](const at::Tensor& x) { return fc_(x.mean(-1)); });
    initialise_convolutions();
  }

 private:
  torch::nn::Conv1d conv1_{nullptr};
  BatchNorm2d bn1_{nullptr};
  torch::nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_resnet18_1d(const ModelOptions& options, const ModelInput& input) {
  const std::vector<int64_t>& shape = input.tensor.shape;  // [C, L] or [L]
  if ((shape.size() != 1 && shape.size() != 2) || input.tensor.type != ElementType::kFloat32)
    fail(ErrorKind::kUsage, "resnet18_1d needs signals, float32 of [length] or [channels, length]",
         "data.source", "Give an array of [samples, length], or choose another model.name");
  return make_module_model<ResNet1d>(shape.size() == 2 ? shape[0] : 1, options.width,
                                     input.outputs);
}

}  // namespace saturate
