// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), with the
// names and the layout of OpenAI's weights and of Hugging Face's GPT2LMHeadModel, without its
// prefix "transformer.".
//
// Shapes: N sequences, T tokens, D channels, H heads, V vocabulary.
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>

#include "model/attention_heads.h"
#include "model/factories.h"
#include "model/stages.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

namespace nn = torch::nn;

constexpr double kDeviation = 0.02;  // of initial weights

struct GptSize {
  int layers;
  int64_t heads, head_channels;
  int64_t channels() const { return heads * head_channels; }
};

nn::LayerNorm gpt_norm(int64_t channels) {
  return nn::LayerNorm(nn::LayerNormOptions({channels}).eps(1e-5));
}

at::Tensor drawn_weights(at::IntArrayRef sizes, double deviation = kDeviation) {
  return at::empty(sizes).normal_(0, deviation);
}

// A linear layer whose weight is [in, out], as in OpenAI's files.
class Conv1DImpl : public nn::Module {  // [N, T, in] to [N, T, out]
 public:
  Conv1DImpl(int64_t in, int64_t out, double deviation = kDeviation) {
    weight_ = register_parameter("weight", drawn_weights({in, out}, deviation));
    bias_ = register_parameter("bias", at::zeros({out}));
  }
  at::Tensor forward(const at::Tensor& x) {
    // No size from the number of sequences, which a trace would record as a constant.
    return at::addmm(bias_, x.flatten(0, 1), weight_).view({-1, x.size(1), bias_.size(0)});
  }

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Conv1D);

class CausalAttentionImpl : public nn::Module {  // [N, T, D] to [N, T, D]
 public:
  CausalAttentionImpl(const GptSize& size, double deviation, Attention kind)
      : size_(size), kind_(kind) {
    const int64_t channels = size.channels();
    c_attn_ = register_module("c_attn", Conv1D(channels, 3 * channels));
    c_proj_ = register_module("c_proj", Conv1D(channels, channels, deviation));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto [queries, keys, values] = split_heads(c_attn_(x), size_.heads);
    return c_proj_(attend(queries, keys, values).transpose(1, 2).flatten(2));
  }

 private:
  at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
    if (kind_ == Attention::kSdpa)
      return at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{},
                                              /*dropout_p=*/0, /*is_causal=*/true);
    const at::Tensor products = at::matmul(queries, keys.transpose(2, 3));  // [N, H, T, T]
    const int64_t tokens = products.size(2);
    const at::Tensor later =
        at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), products.options())
            .triu(1);
    const at::Tensor scores = products / std::sqrt(double(size_.head_channels)) + later;
    return at::matmul(at::softmax(scores, -1), values);
  }

  GptSize size_;
  Attention kind_;
  Conv1D c_attn_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(CausalAttention);

class FeedForwardImpl : public nn::Module {  // [N, T, D] to [N, T, D]
 public:
  FeedForwardImpl(int64_t channels, double deviation) {
    c_fc_ = register_module("c_fc", Conv1D(channels, 4 * channels));
    c_proj_ = register_module("c_proj", Conv1D(4 * channels, channels, deviation));
  }
  at::Tensor forward(const at::Tensor& x) { return c_proj_(at::gelu(c_fc_(x), "tanh")); }

 private:
  Conv1D c_fc_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(FeedForward);

class GptLayerImpl : public nn::Module {  // [N, T, D] to [N, T, D]
 public:
  // `deviation`: of the layers that add to the residual stream.
  GptLayerImpl(const GptSize& size, double deviation, Attention kind) {
    ln_1_ = register_module("ln_1", gpt_norm(size.channels()));
    attention_ = register_module("attn", CausalAttention(size, deviation, kind));
    ln_2_ = register_module("ln_2", gpt_norm(size.channels()));
    mlp_ = register_module("mlp", FeedForward(size.channels(), deviation));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention_(ln_1_(x));
    return y + mlp_(ln_2_(y));
  }

 private:
  nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  CausalAttention attention_{nullptr};
  FeedForward mlp_{nullptr};
};
TORCH_MODULE(GptLayer);

// Tokens [N, T] int64 in [0, V), T at most `context`, to logits [N, T, V] of the token after each.
class Gpt : public Chain {
 public:
  Gpt(const GptSize& size, Attention kind, int64_t context, int64_t vocabulary)
      : context_(context) {
    const int64_t channels = size.channels();
    tokens_ = add_table("wte", vocabulary, channels);
    positions_ = add_table("wpe", context, channels);
    // Not recomputed: it keeps no activations, and a weight of two segments would get its gradient
    // in two parts, which a GradientReducer refuses.
    add_kept_stage([this](const at::Tensor& tokens) { return embed(tokens); });
    const auto layers = register_module("h", std::make_shared<nn::Module>());
    const double deviation = kDeviation / std::sqrt(2.0 * size.layers);
    for (int i = 0; i < size.layers; ++i) {
      GptLayer layer(size, deviation, kind);
      layers->register_module(std::to_string(i), layer);
      add_module_stage(layer);
    }
    ln_f_ = register_module("ln_f", gpt_norm(channels));
    add_stage([this](const at::Tensor& x) { return logits_of(ln_f_(x)); });
  }

  static ForeignWeights foreign_weights() {
    return {.prefix = "transformer.",
            .constants = {"h.*.attn.bias", "h.*.attn.masked_bias"},
            .copies = {{"lm_head.weight", "wte.weight"}},
            .longer = {"wpe.weight"}};
  }

 private:
  at::Tensor add_table(const char* name, int64_t rows, int64_t channels) {
    const auto table = register_module(name, std::make_shared<nn::Module>());
    return table->register_parameter("weight", drawn_weights({rows, channels}));
  }

  at::Tensor embed(const at::Tensor& tokens) const {
    const int64_t count = tokens.size(1);
    TORCH_CHECK(count <= context_, "a sequence of ", count, " tokens, and the model has ", context_,
                " positions");
    const at::Tensor positions = count == context_ ? positions_ : positions_.narrow(0, 0, count);
    return at::embedding(tokens_, tokens) + positions;
  }

  // Tensor cores need a multiple of 8 outputs: with GPT-2's 50,257 an H200 took four times as long.
  at::Tensor logits_of(const at::Tensor& x) const {
    const bool is_aligned = tokens_.size(0) % 8 == 0;
    return x.is_cuda() && !is_aligned ? padded_linear(x, tokens_, 64) : at::linear(x, tokens_);
  }

  int64_t context_;
  at::Tensor tokens_, positions_;
  nn::LayerNorm ln_f_{nullptr};
};

std::unique_ptr<Model> make_gpt(GptSize size, const ModelOptions& options,
                                const ModelInput& input) {
  size.heads = scaled(size.heads, options.width);
  return make_module_model<Gpt>(size, options.attention, input.tensor.shape.at(0), input.outputs);
}

}  // namespace

std::unique_ptr<Model> make_gpt_tiny(const ModelOptions& options, const ModelInput& input) {
  return make_gpt({2, 2, 32}, options, input);
}

std::unique_ptr<Model> make_gpt_micro(const ModelOptions& options, const ModelInput& input) {
  return make_gpt({4, 4, 32}, options, input);
}

std::unique_ptr<Model> make_gpt_mini(const ModelOptions& options, const ModelInput& input) {
  return make_gpt({6, 6, 64}, options, input);
}

std::unique_ptr<Model> make_gpt2(const ModelOptions& options, const ModelInput& input) {
  return make_gpt({12, 12, 64}, options, input);
}

}  // namespace saturate
