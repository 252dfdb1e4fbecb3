// The network of the former CIFAR-10 record for 94 %: K. Jordan, "94% on CIFAR-10 in 3.29 seconds
// on a single GPU" (arXiv 2404.00498), its "airbench94". A frozen 2x2 convolution whitens the
// images, convolutions start as the identity, and BatchNorm trains only its biases.
#include <ATen/ops/amax.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <tuple>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/stages.h"
#include "model/whitening.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

ConvNormOptions airbench_layer(Pool pool) {
  return {.pool = pool, .gelu = true, .scale = false, .momentum = 0.4, .eps = 1e-12};
}

class Airbench : public Chain {  // [N, 3, H, W] to [N, classes]
 public:
  Airbench(double width, int64_t classes)
      : stem_weight_(register_buffer(
            "stem_weight", at::randn({kStemChannels, 3, kStemKernel, kStemKernel}) * 0.1)),
        stem_bias_(register_parameter("stem_bias", at::zeros({kStemChannels}))) {
    add_stage([this](const at::Tensor& images) {
      return at::gelu(at::conv2d(images, stem_weight_, stem_bias_));
    });
    add_group("group1", kStemChannels, scaled(64, width));                            // to H/2
    add_group("group2", scaled(64, width), scaled(256, width));                       // to H/4
    const int64_t out = add_group("group3", scaled(256, width), scaled(256, width));  // to H/8
    fc_ = register_module("fc",
                          torch::nn::Linear(torch::nn::LinearOptions(out, classes).bias(false)));
    add_stage([this](const at::Tensor& x) { return fc_(at::amax(x, {2, 3})) * (1.0 / 9); });
  }

  static constexpr int64_t kWantedImages = kStemImages;

  void prepare(const at::Tensor& images) {
    stem_weight_.copy_(whitening_filters(images, kStemKernel, kStemComponents));
  }

 private:
  // Two convolutions, of which the first pools; returns `out`.
  int64_t add_group(const std::string& name, int64_t in, int64_t out) {
    for (const auto& [suffix, from, pool] :
         {std::tuple("a", in, Pool::kMax2), std::tuple("b", out, Pool::kNone)}) {
      ConvNorm layer = register_module(name + suffix, ConvNorm(from, out, airbench_layer(pool)));
      layer->start_as_identity();
      add_stage([layer](const at::Tensor& x) mutable { return layer(x); }, layer);
    }
    return out;
  }

  at::Tensor stem_weight_, stem_bias_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_airbench(const ModelOptions& options, const ImageShape& shape) {
  require_size(options, shape, 16);
  return make_module_model<Airbench>(options.width, shape.classes);
}

}  // namespace saturate
