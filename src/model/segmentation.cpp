// Segmentation networks: an encoder, then a decoder.
#include <ATen/ops/cat.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>

#include <string>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

using torch::nn::Conv2d, torch::nn::Conv2dOptions;
using torch::nn::ConvTranspose2d, torch::nn::ConvTranspose2dOptions;

// A container module, like Python's ModuleList.
class ListImpl : public torch::nn::Module {};
TORCH_MODULE(List);

// [N, in, H, W] to [N, out, H, W].
class DoubleConvImpl : public torch::nn::Module {
 public:
  DoubleConvImpl(int64_t in, int64_t out)
      : first_(register_module("0", ConvNorm(in, out))),
        second_(register_module("1", ConvNorm(out, out))) {}
  at::Tensor forward(const at::Tensor& x) { return second_(first_(x)); }

 private:
  ConvNorm first_, second_;
};
TORCH_MODULE(DoubleConv);

// [N, 2 c, H/2, W/2] and the encoder's [N, c, H, W] to [N, c, H, W].
class UpImpl : public torch::nn::Module {
 public:
  explicit UpImpl(int64_t channels)
      : up_(register_module(
            "up", ConvTranspose2d(ConvTranspose2dOptions(2 * channels, channels, 2).stride(2)))),
        conv_(register_module("conv", DoubleConv(2 * channels, channels))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skipped) {
    return conv_(at::cat({skipped, up_(x)}, 1));
  }

 private:
  ConvTranspose2d up_;
  DoubleConv conv_;
};
TORCH_MODULE(Up);

// O. Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (arXiv
// 1505.04597), with BatchNorm, and padding so that the logits have the images' size.
class UNet : public torch::nn::Module {
 public:
  static constexpr bool kPerPixel = true;
  static constexpr int kLevels = 5;

  UNet(double width, int64_t classes) {
    List encoder = register_module("encoder", List()), decoder = register_module("decoder", List());
    int64_t in = 3;
    for (int level = 0; level < kLevels; ++level) {
      const int64_t out = channels(width, level);
      down_.push_back(encoder->register_module(std::to_string(level), DoubleConv(in, out)));
      in = out;
    }
    for (int level = kLevels - 2; level >= 0; --level)
      up_.push_back(decoder->register_module(std::to_string(kLevels - 2 - level),
                                             Up(channels(width, level))));
    head_ = register_module("head", Conv2d(Conv2dOptions(channels(width, 0), classes, 1)));
  }

  // The features of each level, from [N, c, H, W] to [N, 16 c, H/16, W/16].
  std::vector<at::Tensor> encode(const at::Tensor& images) {
    std::vector<at::Tensor> features;
    for (int level = 0; level < kLevels; ++level)
      features.push_back(
          down_[size_t(level)](level == 0 ? images : at::max_pool2d(features.back(), 2)));
    return features;
  }
  at::Tensor decode(const std::vector<at::Tensor>& features) {
    at::Tensor x = features.back();
    for (size_t i = 0; i < up_.size(); ++i) x = up_[i](x, features[features.size() - 2 - i]);
    return head_(x);
  }
  at::Tensor forward(const at::Tensor& images) { return decode(encode(images)); }

 private:
  static int64_t channels(double width, int level) { return scaled(64, width) << level; }

  std::vector<DoubleConv> down_;
  std::vector<Up> up_;
  Conv2d head_{nullptr};
};

// Names as in two torch.nn.Sequential: each convolution after the first halves the image and
// doubles the channels, three times; the decoder does the reverse, and a last one gives classes.
class ToySeg : public torch::nn::Module {
 public:
  static constexpr bool kPerPixel = true;
  static constexpr int kHalvings = 3;

  ToySeg(int64_t channels, int64_t classes) {
    List encoder = register_module("encoder", List()), decoder = register_module("decoder", List());
    int place = 0;  // odd indices are ReLUs
    const auto down = [&](const Conv2d& conv) {
      down_.push_back(encoder->register_module(std::to_string(place), conv));
      place += 2;
    };
    down(Conv2d(Conv2dOptions(3, channels, 1)));
    for (int i = 0; i < kHalvings; ++i, channels *= 2)
      down(Conv2d(Conv2dOptions(channels, channels * 2, 2).stride(2)));
    place = 0;
    for (int i = 0; i < kHalvings; ++i, channels /= 2, place += 2)
      up_.push_back(decoder->register_module(
          std::to_string(place),
          ConvTranspose2d(ConvTranspose2dOptions(channels, channels / 2, 2).stride(2))));
    head_ = decoder->register_module(std::to_string(place),
                                     Conv2d(Conv2dOptions(channels, classes, 1)));
  }

  std::vector<at::Tensor> encode(const at::Tensor& images) {
    at::Tensor x = images;
    for (Conv2d& conv : down_) x = at::relu(conv(x));
    return {x};
  }
  at::Tensor decode(const std::vector<at::Tensor>& features) {
    at::Tensor x = features.front();
    for (ConvTranspose2d& conv : up_) x = at::relu(conv(x));
    return head_(x);
  }
  at::Tensor forward(const at::Tensor& images) { return decode(encode(images)); }

 private:
  std::vector<Conv2d> down_;
  std::vector<ConvTranspose2d> up_;
  Conv2d head_{nullptr};
};

}  // namespace

void require_multiple(const ModelOptions& options, const ModelInput& input, int step) {
  if (input.size % step == 0) return;
  fail(ErrorKind::kUsage,
       options.name + " needs images whose side is a multiple of " + std::to_string(step) +
           ", not of " + std::to_string(input.size) + " pixels",
       "augment.size", "Set augment.size to a multiple, or choose another model.name");
}

std::unique_ptr<Model> make_unet(const ModelOptions& options, const ModelInput& input) {
  require_multiple(options, input, 1 << (UNet::kLevels - 1));
  return make_module_model<UNet>(options.width, input.outputs);
}

std::unique_ptr<Model> make_toy_seg(const ModelOptions& options, const ModelInput& input) {
  require_multiple(options, input, 1 << ToySeg::kHalvings);
  return make_module_model<ToySeg>(scaled(16, options.width), input.outputs);
}

}  // namespace saturate
