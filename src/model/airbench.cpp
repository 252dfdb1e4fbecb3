// The network of the former CIFAR-10 record for 94 %: K. Jordan, "94% on CIFAR-10 in 3.29 seconds
// on a single GPU" (arXiv 2404.00498), its "airbench94". A frozen 2x2 convolution whitens the
// images, convolutions start as the identity, and BatchNorm trains only its biases.
#include <ATen/ops/amax.h>
#include <ATen/ops/gelu.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <tuple>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/whitening.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

ConvNormOptions airbench_layer(Pool pool) {
  return {.pool = pool, .gelu = true, .scale = false, .momentum = 0.4, .eps = 1e-12};
}

class Airbench : public WhitenedChain {  // [N, 3, H, W] to [N, classes]
 public:
  Airbench(double width, int64_t classes) {
    add_stage([this](const at::Tensor& images) { return at::gelu(stem(images)); });
    add_group("group1", kStemChannels, scaled(64, width));                            // to H/2
    add_group("group2", scaled(64, width), scaled(256, width));                       // to H/4
    const int64_t out = add_group("group3", scaled(256, width), scaled(256, width));  // to H/8
    fc_ = register_module("fc",
                          torch::nn::Linear(torch::nn::LinearOptions(out, classes).bias(false)));
    add_stage([this](const at::Tensor& x) { return fc_(at::amax(x, {2, 3})) * (1.0 / 9); });
  }

 private:
  // Two convolutions, of which the first pools; returns `out`.
  int64_t add_group(const std::string& name, int64_t in, int64_t out) {
    for (const auto& [suffix, from, pool] :
         {std::tuple("a", in, Pool::kMax2), std::tuple("b", out, Pool::kNone)}) {
      ConvNorm layer = register_module(name + suffix, ConvNorm(from, out, airbench_layer(pool)));
      layer->start_as_identity();
      add_module_stage(layer);
    }
    return out;
  }

  torch::nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_airbench(const ModelOptions& options, const ModelInput& input) {
  require_size(options, input, 16);
  return make_module_model<Airbench>(options.width, input.outputs);
}

}  // namespace saturate
