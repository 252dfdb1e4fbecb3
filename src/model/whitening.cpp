// Small networks for 32x32 images that learn in few epochs, after K. Jordan, "94% on CIFAR-10
// in 3.29 seconds on a single GPU" (arXiv 2404.00498): a frozen 2x2 convolution whitens the images,
// convolutions start as the identity, and each stage pools right after its first one.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/stages.h"
#include "saturate/module_model.h"

namespace saturate {

at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, int64_t components) {
  const at::NoGradGuard no_grad;
  constexpr double kFloor = 5e-4;  // keeps weak components from being amplified to noise
  const int64_t channels = images.size(1), values = channels * kernel * kernel;
  const at::Tensor patches = images.unfold(2, kernel, kernel)
                                 .unfold(3, kernel, kernel)  // [N, C, h, w, kernel, kernel]
                                 .permute({0, 2, 3, 1, 4, 5})
                                 .reshape({-1, values})
                                 .to(at::kDouble);
  const at::Tensor covariance = at::matmul(patches.t(), patches) / double(patches.size(0));
  // Ascending; on the CPU, so that runs on a GPU start like runs on the CPU, without cuSOLVER.
  const auto [eigenvalues, eigenvectors] = at::linalg_eigh(covariance.cpu());
  const at::Tensor scaled = (eigenvectors / (eigenvalues + kFloor).sqrt()).t().flip(0);
  const at::Tensor leading = scaled.narrow(0, 0, components);
  return at::cat({leading, -leading})
      .reshape({2 * components, channels, kernel, kernel})
      .to(images.options());
}

namespace {

// [N, 3, H, W] to [N, classes]. The first convolution, the stem, whitens: a frozen 2x2 kernel with
// two outputs for each component of 2 x 2 pixels with three channels, and a trained bias.
class WhitenedChain : public Chain {
 public:
  static constexpr int64_t kWantedImages = 2048;
  void prepare(const at::Tensor& images) {
    stem_weight_.copy_(whitening_filters(images, kStemKernel, kStemComponents));
  }

 protected:
  static constexpr int64_t kStemKernel = 2, kStemComponents = 3 * kStemKernel * kStemKernel;
  static constexpr int64_t kStemChannels = 2 * kStemComponents;

  WhitenedChain()
      : stem_weight_(register_buffer(
            "stem_weight", at::randn({kStemChannels, 3, kStemKernel, kStemKernel}) * 0.1)),
        stem_bias_(register_parameter("stem_bias", at::zeros({kStemChannels}))) {}

  at::Tensor stem(const at::Tensor& images) const {
    return at::conv2d(images, stem_weight_, stem_bias_);
  }

  ConvNorm add_unit(const std::string& name, int64_t in, int64_t out,
                    const ConvNormOptions& options) {
    ConvNorm unit = register_module(name, ConvNorm(in, out, options));
    unit->start_as_identity();
    return unit;
  }

  // The last stage: each channel's largest value, then a linear layer without bias, times `scale`.
  void add_head(int64_t channels, int64_t classes, double scale) {
    const auto options = torch::nn::LinearOptions(channels, classes).bias(false);
    torch::nn::Linear fc = register_module("fc", torch::nn::Linear(options));
    add_stage([fc, scale](const at::Tensor& x) mutable { return fc(at::amax(x, {2, 3})) * scale; });
  }

 private:
  at::Tensor stem_weight_, stem_bias_;
};

// The residual branches, the global max pool and the logits' scale are from D. Page's DAWNBench
// entry (https://github.com/davidcpage/cifar10-fast).
class ResNet9 : public WhitenedChain {
 public:
  ResNet9(double width, int64_t classes) {
    const int64_t narrow = scaled(64, width), wide = scaled(256, width);
    add_stage([this](const at::Tensor& images) { return stem(images).relu_(); });
    add_module_stage(pooled("conv1", kStemChannels, narrow));  // [N, 64, H/2, W/2]
    add_residual(add_unit("residual1", narrow, narrow, {}));
    add_module_stage(pooled("conv2", narrow, wide));  // [N, 256, H/4, W/4]
    add_residual(add_unit("residual2", wide, wide, {}));
    add_module_stage(pooled("conv3", wide, wide));  // [N, 256, H/8, W/8]
    const ConvNorm first = add_unit("residual3a", wide, wide, {});
    add_residual(first, add_unit("residual3b", wide, wide, {}));
    add_head(wide, classes, 0.125);
  }

 private:
  ConvNorm pooled(const std::string& name, int64_t in, int64_t out) {
    return add_unit(name, in, out, {.pool = Pool::kMax2});
  }

  template <class... Units>
  void add_residual(const Units&... units) {
    torch::nn::Sequential branch(units...);
    add_stage([branch](const at::Tensor& x) mutable { return x + branch->forward(x); }, branch);
  }
};

// The network of the former CIFAR-10 record for 94 %, the paper's "airbench94", whose BatchNorm
// trains only its biases.
class Airbench : public WhitenedChain {
 public:
  Airbench(double width, int64_t classes) {
    const int64_t narrow = scaled(64, width), wide = scaled(256, width);
    add_stage([this](const at::Tensor& images) { return at::gelu(stem(images)); });
    add_group("group1", kStemChannels, narrow);  // to H/2
    add_group("group2", narrow, wide);           // to H/4
    add_group("group3", wide, wide);             // to H/8
    add_head(wide, classes, 1.0 / 9);
  }

 private:
  void add_group(const std::string& name, int64_t in, int64_t out) {
    ConvNormOptions options{
        .pool = Pool::kMax2, .gelu = true, .scale = false, .momentum = 0.4, .eps = 1e-12};
    add_module_stage(add_unit(name + "a", in, out, options));
    options.pool = Pool::kNone;
    add_module_stage(add_unit(name + "b", out, out, options));
  }
};

}  // namespace

std::unique_ptr<Model> make_resnet9(const ModelOptions& options, const ModelInput& input) {
  require_size(options, input, 16);
  return make_module_model<ResNet9>(options.width, input.outputs);
}

std::unique_ptr<Model> make_airbench(const ModelOptions& options, const ModelInput& input) {
  require_size(options, input, 16);
  return make_module_model<Airbench>(options.width, input.outputs);
}

}  // namespace saturate
