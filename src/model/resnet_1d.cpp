// ResNet-18 (https://arxiv.org/abs/1512.03385) for signals: torchvision's layers and names, with
// convolutions and pools along one dimension.
#include <ATen/ops/conv1d.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
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

// conv(x). Where x has length 1 its stride has no effect, and is replaced by 1: with another stride
// torch 2.11 to 2.15 leave parts of the weight's bf16 gradient uninitialised on a CPU.
at::Tensor convolved(torch::nn::Conv1d& conv, const at::Tensor& x) {
  if (x.size(2) > 1) return conv(x);
  return at::conv1d(x, conv->weight, {}, /*stride=*/1, /*padding=*/conv->weight.size(2) / 2);
}

// The places of signals of varying length that are not padding; undefined if all have one length.
struct Places {
  at::Tensor mask;   // [N, 1, L]: 1, and 0 for padding
  at::Tensor index;  // in [N * L]; only in training
};

// BatchNorm of [N, C, L], whose statistics do not count padding. Padding is 0 in the result.
at::Tensor normed(BatchNorm2d& norm, const at::Tensor& x, const Places& places) {
  if (!places.mask.defined() || !norm->is_training()) {
    const at::Tensor y = norm(x.unsqueeze(-1)).squeeze(-1);
    return places.mask.defined() ? y * places.mask.to(y.scalar_type()) : y;
  }
  const at::Tensor rows = x.transpose(1, 2).flatten(0, 1);  // [N * L, C]
  const at::Tensor own = rows.index_select(0, places.index).unsqueeze(-1).unsqueeze(-1);
  const at::Tensor y = norm(own).flatten(1);
  return at::zeros(rows.sizes(), y.options())
      .index_copy(0, places.index, y)
      .view({x.size(0), x.size(2), x.size(1)})
      .transpose(1, 2);
}

// The 1x1 convolution of a shortcut and its BatchNorm.
class SignalShortcutImpl : public torch::nn::Module {
 public:
  SignalShortcutImpl(int64_t in, int64_t out, int64_t stride)
      : conv_(register_module("0", signal_conv(in, out, 1, stride))),
        norm_(register_module("1", BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x, const Places& out) {
    return normed(norm_, convolved(conv_, x), out);
  }

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
  // [N, in, L] to [N, out, L / stride], of which `out` are the places.
  at::Tensor forward(const at::Tensor& x, const Places& out) {
    at::Tensor y = normed(bn2_, conv2_(normed(bn1_, convolved(conv1_, x), out).relu_()), out);
    y += downsample_ ? downsample_->forward(x, out) : x;
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

// [N, C, L], or [N, L] with one channel, to [N, classes]. Signals of varying length are
// [N, C + 1, L], where the last channel is the mask: logits and gradients do not depend on padding.
class ResNet1d : public Chain {
 public:
  ResNet1d(int64_t channels_in, bool has_mask, double width, int64_t classes) {
    int64_t channels = scaled(64, width);
    conv1_ = register_module("conv1", signal_conv(channels_in, channels, 7, 2));
    bn1_ = register_module("bn1", BatchNorm2d(channels));
    add_stage(
        [this, channels_in, has_mask](const at::Tensor& signals) {
          at::Tensor x = signals.dim() == 2 ? signals.unsqueeze(1) : signals;
          if (has_mask) {
            const at::Tensor mask = x.narrow(1, channels_in, 1);
            find_places(mask);
            x = x.narrow(1, 0, channels_in) * mask;
          }
          x = normed(bn1_, convolved(conv1_, x), places_[0]).relu_();
          // After relu, zeros in the padding change no maximum. Windows in the padding may see
          // places.
          x = at::max_pool1d(x, 3, /*stride=*/2, /*padding=*/1);
          return has_mask ? x * places_[1].mask.to(x.scalar_type()) : x;
        },
        bn1_);
    for (int stage = 0; stage < 4; ++stage) {
      const int64_t out = scaled(int64_t{64} << stage, width);
      torch::nn::Sequential layer;
      for (int i = 0; i < 2; ++i) {
        SignalBlock block(channels, out, stage > 0 && i == 0 ? 2 : 1);
        layer->push_back(block);
        add_stage(
            [this, block, stage](const at::Tensor& x) mutable {
              return block->forward(x, places_[size_t(stage) + 1]);
            },
            block);
        channels = out;
      }
      register_module("layer" + std::to_string(stage + 1), layer);
    }
    fc_ = register_module("fc", torch::nn::Linear(channels, classes));
    add_stage([this, has_mask](const at::Tensor& x) {
      return fc_(has_mask ? x.sum(-1) / places_.back().mask.sum(-1).clamp_min(1) : x.mean(-1));
    });
    initialise_convolutions();
  }

 private:
  // Each halving of L, rounded up, keeps the even places, of signals as of the mask.
  void find_places(at::Tensor mask) {
    for (Places& places : places_) {
      mask = mask.slice(2, /*start=*/0, /*end=*/{}, /*step=*/2);
      places = {mask, is_training() ? at::nonzero(mask.flatten().gt(0)).flatten() : at::Tensor()};
    }
  }

  // After the first convolution, and of each layer. Set by the first stage, for those after it.
  std::array<Places, 5> places_;
  torch::nn::Conv1d conv1_{nullptr};
  BatchNorm2d bn1_{nullptr};
  torch::nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<Model> make_resnet18_1d(const ModelOptions& options, const ModelInput& input) {
  const std::vector<int64_t>& shape = input.tensor.shape;  // [C, L], [L], or [C + 1, L]
  const bool has_mask = input.tensor.is_sequence;
  if ((shape.size() != 1 && shape.size() != 2) || input.tensor.type != ElementType::kFloat32)
    fail(ErrorKind::kUsage, "resnet18_1d needs signals, float32 of [length] or [channels, length]",
         "data.source", "Give an array of [samples, length], or choose another model.name");
  const int64_t channels = shape.size() == 2 ? shape[0] - int64_t{has_mask} : 1;
  return make_module_model<ResNet1d>(channels, has_mask, options.width, input.outputs);
}

}  // namespace saturate
