// Vision transformers (https://arxiv.org/abs/2010.11929) as in torchvision: the same names and
// construction order, so that the same seed gives the same weights.
//
// Shapes: N images, L tokens (class token, then the patches row by row), D channels, H heads.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

#include "model/attention_heads.h"
#include "model/factories.h"
#include "model/stages.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

namespace nn = torch::nn;

constexpr int64_t kPatch = 16;         // pixels a side
constexpr int64_t kHeadChannels = 64;  // D / H
constexpr int kLayers = 12;

// A normal distribution truncated at -2 and 2, by inverting its distribution function, like
// torch.nn.init.trunc_normal_.
void fill_truncated_normal(at::Tensor& tensor, double deviation) {
  const at::NoGradGuard no_grad;
  const double bound = std::erf(2 / deviation / std::sqrt(2.0));
  tensor.uniform_(-bound, bound).erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2, 2);
}

nn::LayerNorm layer_norm(int64_t channels) {
  return nn::LayerNorm(nn::LayerNormOptions({channels}).eps(1e-6));
}

class SelfAttentionImpl : public nn::Module {  // [N, L, D] to [N, L, D]
 public:
  SelfAttentionImpl(int64_t heads, Attention kind) : heads_(heads), kind_(kind) {
    const int64_t channels = heads * kHeadChannels;
    in_weight_ = register_parameter("in_proj_weight", at::empty({3 * channels, channels}));
    in_bias_ = register_parameter("in_proj_bias", at::zeros({3 * channels}));
    out_ = register_module("out_proj", nn::Linear(channels, channels));
    nn::init::xavier_uniform_(in_weight_);
    nn::init::zeros_(out_->bias);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto [queries, keys, values] = split_heads(at::linear(x, in_weight_, in_bias_), heads_);
    return out_(attend(queries, keys, values).transpose(1, 2).flatten(2));
  }

 private:
  at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
    if (kind_ == Attention::kSdpa) return at::scaled_dot_product_attention(queries, keys, values);
    const at::Tensor products = at::matmul(queries, keys.transpose(2, 3));  // [N, H, L, L]
    return at::matmul(at::softmax(products / std::sqrt(double(kHeadChannels)), -1), values);
  }

  int64_t heads_;
  Attention kind_;
  at::Tensor in_weight_, in_bias_;
  nn::Linear out_{nullptr};
};
TORCH_MODULE(SelfAttention);

class EncoderLayerImpl : public nn::Module {  // [N, L, D] to [N, L, D]
 public:
  EncoderLayerImpl(int64_t heads, Attention kind) {
    const int64_t channels = heads * kHeadChannels;
    ln_1_ = register_module("ln_1", layer_norm(channels));
    attention_ = register_module("self_attention", SelfAttention(heads, kind));
    ln_2_ = register_module("ln_2", layer_norm(channels));
    nn::Linear first(channels, 4 * channels), second(4 * channels, channels);
    for (const auto& linear : {first, second}) {
      nn::init::xavier_uniform_(linear->weight);
      nn::init::normal_(linear->bias, 0, 1e-6);
    }
    mlp_->push_back("0", first);
    mlp_->push_back("1", nn::GELU());
    mlp_->push_back("3", second);  // torchvision has dropout before it
    register_module("mlp", mlp_);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention_(ln_1_(x));
    return y + mlp_->forward(ln_2_(y));
  }

 private:
  nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  SelfAttention attention_{nullptr};
  nn::Sequential mlp_;
};
TORCH_MODULE(EncoderLayer);

class VisionTransformer : public Chain {  // [N, 3, size, size] to [N, classes]
 public:
  VisionTransformer(int64_t heads, Attention kind, int64_t size, int64_t classes) {
    const int64_t channels = heads * kHeadChannels, side = size / kPatch;
    conv_proj_ = register_module("conv_proj",
                                 nn::Conv2d(nn::Conv2dOptions(3, channels, kPatch).stride(kPatch)));
    class_token_ = register_parameter("class_token", at::zeros({1, 1, channels}));
    encoder_ = register_module("encoder", std::make_shared<nn::Module>());
    positions_ =
        encoder_->register_parameter("pos_embedding", at::empty({1, side * side + 1, channels}));
    nn::init::normal_(positions_, 0, 0.02);
    add_stage([this](const at::Tensor& images) { return embed(images); });
    nn::Sequential layers;
    for (int i = 0; i < kLayers; ++i) {
      EncoderLayer layer(heads, kind);
      layers->push_back("encoder_layer_" + std::to_string(i), layer);
      add_module_stage(layer);
    }
    encoder_->register_module("layers", layers);
    ln_ = encoder_->register_module("ln", layer_norm(channels));
    auto heads_module = register_module("heads", std::make_shared<nn::Module>());
    head_ = heads_module->register_module("head", nn::Linear(channels, classes));
    add_stage([this](const at::Tensor& x) { return head_(ln_(x.select(1, 0))); });
    fill_truncated_normal(conv_proj_->weight, std::sqrt(1.0 / double(3 * kPatch * kPatch)));
    for (const auto& tensor : {conv_proj_->bias, head_->weight, head_->bias})
      nn::init::zeros_(tensor);
  }

 private:
  at::Tensor embed(const at::Tensor& images) {
    const at::Tensor patches = conv_proj_(images).flatten(2).transpose(1, 2);
    // Contains no number that a trace would record as a constant.
    const at::Tensor token = class_token_.expand_as(patches.narrow(1, 0, 1));
    return at::cat({token, patches}, 1) + positions_;
  }

  nn::Conv2d conv_proj_{nullptr};
  at::Tensor class_token_, positions_;
  std::shared_ptr<nn::Module> encoder_;
  nn::LayerNorm ln_{nullptr};
  nn::Linear head_{nullptr};
};

std::unique_ptr<Model> make_vit(int64_t heads, const ModelOptions& options,
                                const ModelInput& input) {
  require_square(options, input);
  require_multiple(options, input, kPatch);
  return make_module_model<VisionTransformer>(scaled(heads, options.width), options.attention,
                                              input.size.width, input.outputs);
}

}  // namespace

std::unique_ptr<Model> make_vit_tiny(const ModelOptions& options, const ModelInput& input) {
  return make_vit(3, options, input);
}

std::unique_ptr<Model> make_vit_b_16(const ModelOptions& options, const ModelInput& input) {
  return make_vit(12, options, input);
}

}  // namespace saturate
