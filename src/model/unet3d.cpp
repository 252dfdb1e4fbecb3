// A U-Net for volumes.
#include <ATen/ops/cat.h>
#include <ATen/ops/max_pool3d.h>
#include <torch/nn/modules/conv.h>

#include <string>

#include "model/factories.h"
#include "saturate/batch_norm.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

using torch::nn::Conv3d, torch::nn::Conv3dOptions;
using torch::nn::ConvTranspose3d, torch::nn::ConvTranspose3dOptions;

// relu(BatchNorm(3x3x3 convolution)): [N, in, D, H, W] to [N, out, D, H, W].
class VolumeConvNormImpl : public torch::nn::Module {
 public:
  VolumeConvNormImpl(int64_t in, int64_t out)
      : conv_(register_module("conv", Conv3d(Conv3dOptions(in, out, 3).padding(1).bias(false)))),
        norm_(register_module("norm", BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = conv_(x);
    // Its statistics are by channel: the other dimensions may be seen as two.
    return norm_(y.flatten(2, 3)).unflatten(2, {y.size(2), y.size(3)}).relu_();
  }

 private:
  Conv3d conv_;
  BatchNorm2d norm_;
};
TORCH_MODULE(VolumeConvNorm);

class VolumeListImpl : public torch::nn::Module {};  // like Python's ModuleList
TORCH_MODULE(VolumeList);

class VolumeDoubleConvImpl : public torch::nn::Module {
 public:
  VolumeDoubleConvImpl(int64_t in, int64_t out)
      : first_(register_module("0", VolumeConvNorm(in, out))),
        second_(register_module("1", VolumeConvNorm(out, out))) {}
  at::Tensor forward(const at::Tensor& x) { return second_(first_(x)); }

 private:
  VolumeConvNorm first_, second_;
};
TORCH_MODULE(VolumeDoubleConv);

// [N, 2 c, D/2, H/2, W/2] and the encoder's [N, c, D, H, W] to [N, c, D, H, W].
class VolumeUpImpl : public torch::nn::Module {
 public:
  explicit VolumeUpImpl(int64_t channels)
      : up_(register_module(
            "up", ConvTranspose3d(ConvTranspose3dOptions(2 * channels, channels, 2).stride(2)))),
        conv_(register_module("conv", VolumeDoubleConv(2 * channels, channels))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skipped) {
    return conv_(at::cat({skipped, up_(x)}, 1));
  }

 private:
  ConvTranspose3d up_;
  VolumeDoubleConv conv_;
};
TORCH_MODULE(VolumeUp);

// O. Cicek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation" (arXiv
// 1606.06650), with padding, and the channels of `unet` divided by four. [N, C, D, H, W], or
// [N, D, H, W] with one channel, to [N, classes, D, H, W].
class UNet3d : public torch::nn::Module {
 public:
  static constexpr bool kPerPixel = true;
  static constexpr int kLevels = 4;

  UNet3d(int64_t channels_in, double width, int64_t classes) {
    VolumeList encoder = register_module("encoder", VolumeList()),
               decoder = register_module("decoder", VolumeList());
    int64_t in = channels_in;
    for (int level = 0; level < kLevels; ++level) {
      const int64_t out = channels(width, level);
      down_.push_back(encoder->register_module(std::to_string(level), VolumeDoubleConv(in, out)));
      in = out;
    }
    for (int level = kLevels - 2; level >= 0; --level)
      up_.push_back(decoder->register_module(std::to_string(kLevels - 2 - level),
                                             VolumeUp(channels(width, level))));
    head_ = register_module("head", Conv3d(Conv3dOptions(channels(width, 0), classes, 1)));
  }

  // The features of each level.
  std::vector<at::Tensor> encode(const at::Tensor& volumes) {
    const at::Tensor input = volumes.dim() == 4 ? volumes.unsqueeze(1) : volumes;
    std::vector<at::Tensor> features;
    for (int level = 0; level < kLevels; ++level)
      features.push_back(
          down_[size_t(level)](level == 0 ? input : at::max_pool3d(features.back(), 2)));
    return features;
  }
  at::Tensor decode(const std::vector<at::Tensor>& features) {
    at::Tensor x = features.back();
    for (size_t i = 0; i < up_.size(); ++i) x = up_[i](x, features[features.size() - 2 - i]);
    return head_(x);
  }
  at::Tensor forward(const at::Tensor& volumes) { return decode(encode(volumes)); }

 private:
  static int64_t channels(double width, int level) { return scaled(16, width) << level; }

  std::vector<VolumeDoubleConv> down_;
  std::vector<VolumeUp> up_;
  Conv3d head_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_unet3d(const ModelOptions& options, const ModelInput& input) {
  const std::vector<int64_t>& shape = input.tensor.shape;  // [C, D, H, W] or [D, H, W]
  constexpr int64_t kStep = 1 << (UNet3d::kLevels - 1);
  const bool fits =
      (shape.size() == 3 || shape.size() == 4) && input.tensor.type == ElementType::kFloat32 &&
      std::all_of(shape.end() - 3, shape.end(), [](int64_t side) { return side % kStep == 0; });
  if (!fits)
    fail(
        ErrorKind::kUsage,
        "unet3d needs volumes of float32 or uint8 whose depth, height and width are multiples of " +
            std::to_string(kStep),
        "data.source",
        "Crop them with augment.crop and augment.size, or choose another model.name");
  return make_module_model<UNet3d>(shape.size() == 4 ? shape[0] : 1, options.width, input.outputs);
}

}  // namespace saturate
