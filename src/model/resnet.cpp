// ResNets (https://arxiv.org/abs/1512.03385) as in torchvision: the same names and construction
// order, so that the same seed gives the same weights. Also one with squeeze-and-excitation blocks
// (https://arxiv.org/abs/1709.01507).
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>

#include "model/factories.h"
#include "model/stages.h"
#include "saturate/batch_norm.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  const auto options =
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false);
  return nn::Conv2d(options);
}

enum class BlockKind { kBasic, kBottleneck, kSqueezed };

int64_t expansion(BlockKind kind) {
  return kind == BlockKind::kBottleneck ? 4 : 1;
}

// Scales each channel by a small network's function of all channel means: [N, C, H, W] to itself.
class SqueezeExciteImpl : public nn::Module {
 public:
  explicit SqueezeExciteImpl(int64_t channels)
      : down_(channels, std::max<int64_t>(1, channels / kReduction)),
        up_(std::max<int64_t>(1, channels / kReduction), channels) {
    nn::Sequential fc;
    fc->push_back("0", down_);
    fc->push_back("2", up_);  // the rectifier between them has no weights
    register_module("fc", fc);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor weights = at::sigmoid(up_(at::relu(down_(x.mean({2, 3})))));  // [N, C]
    return x * weights.unsqueeze(-1).unsqueeze(-1);
  }

 private:
  static constexpr int64_t kReduction = 16;
  nn::Linear down_, up_;
};
TORCH_MODULE(SqueezeExcite);

// relu(convolutions(x) + shortcut(x)); the shortcut is a 1x1 convolution if the shape changes. A
// bottleneck has its stride in the 3x3 convolution ("ResNet V1.5"), other blocks in their first.
class BlockImpl : public nn::Module {
 public:
  BlockImpl(BlockKind kind, int64_t in, int64_t planes, int64_t stride) {
    const int64_t out = planes * expansion(kind);
    nn::Sequential shortcut{nullptr};
    if (stride != 1 || in != out)
      shortcut = nn::Sequential(conv(in, out, 1, stride), BatchNorm2d(out));
    if (kind == BlockKind::kBottleneck) {
      add(conv(in, planes, 1, 1), planes);
      add(conv(planes, planes, 3, stride), planes);
      add(conv(planes, out, 1, 1), out);
    } else {
      add(conv(in, planes, 3, stride), planes);
      add(conv(planes, planes, 3, 1), planes);
    }
    if (shortcut) downsample_ = register_module("downsample", shortcut);
    if (kind == BlockKind::kSqueezed) squeeze_ = register_module("se", SqueezeExcite(out));
  }

  at::Tensor forward(const at::Tensor& x) {  // [N, in, H, W] to [N, out, H / stride, W / stride]
    at::Tensor y = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      y = norms_[i](convs_[i](y));
      if (i + 1 < convs_.size()) y.relu_();
    }
    if (squeeze_) y = squeeze_(y);
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

 private:
  void add(const nn::Conv2d& convolution, int64_t channels) {
    const std::string number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number, convolution));
    norms_.push_back(register_module("bn" + number, BatchNorm2d(channels)));
  }

  std::vector<nn::Conv2d> convs_;
  std::vector<BatchNorm2d> norms_;
  SqueezeExcite squeeze_{nullptr};
  nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Block);

// The layers before the blocks: a 7x7 convolution and a pool, both with stride 2, or a 3x3
// convolution that keeps the size, for images of 32 pixels.
enum class Stem { kImageNet, kCifar };

class ResNet : public Chain {  // [N, 3, H, W] to [N, classes]
 public:
  ResNet(BlockKind kind, const std::array<int, 4>& depths, double width, int64_t classes,
         Stem stem = Stem::kImageNet) {
    int64_t channels = scaled(64, width);
    const bool pools = stem == Stem::kImageNet;
    conv1_ = register_module("conv1", pools ? conv(3, channels, 7, 2) : conv(3, channels, 3, 1));
    bn1_ = register_module("bn1", BatchNorm2d(channels));
    add_stage(
        [this, pools](const at::Tensor& images) {
          const at::Tensor x = bn1_(conv1_(images)).relu_();
          return pools ? at::max_pool2d(x, 3, /*stride=*/2, /*padding=*/1) : x;
        },
        bn1_);
    for (size_t stage = 0; stage < depths.size(); ++stage) {
      const int64_t planes = scaled(int64_t(64) << stage, width);
      nn::Sequential layer;
      for (int i = 0; i < depths[stage]; ++i) {
        Block block(kind, channels, planes, stage > 0 && i == 0 ? 2 : 1);
        layer->push_back(block);
        add_module_stage(block);
        channels = planes * expansion(kind);
      }
      register_module("layer" + std::to_string(stage + 1), layer);
    }
    fc_ = register_module("fc", nn::Linear(channels, classes));
    add_stage([this](const at::Tensor& x) {
      return fc_(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
    });
    initialise_convolutions();
  }

 private:
  nn::Conv2d conv1_{nullptr};
  BatchNorm2d bn1_{nullptr};
  nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_resnet18(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<ResNet>(BlockKind::kBasic, std::array{2, 2, 2, 2}, options.width,
                                   input.outputs);
}

std::unique_ptr<Model> make_resnet18_cifar(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<ResNet>(BlockKind::kBasic, std::array{2, 2, 2, 2}, options.width,
                                   input.outputs, Stem::kCifar);
}

std::unique_ptr<Model> make_resnet34(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<ResNet>(BlockKind::kBasic, std::array{3, 4, 6, 3}, options.width,
                                   input.outputs);
}

std::unique_ptr<Model> make_resnet50(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<ResNet>(BlockKind::kBottleneck, std::array{3, 4, 6, 3}, options.width,
                                   input.outputs);
}

std::unique_ptr<Model> make_se_resnet18(const ModelOptions& options, const ModelInput& input) {
  return make_module_model<ResNet>(BlockKind::kSqueezed, std::array{2, 2, 2, 2}, options.width,
                                   input.outputs);
}

}  // namespace saturate
