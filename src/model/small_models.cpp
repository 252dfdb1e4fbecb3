// Networks small enough for demonstrations and tests.
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "model/conv_norm.h"
#include "model/factories.h"
#include "model/stages.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"

namespace saturate {
namespace {

class Mlp : public Chain {
 public:
  Mlp(int64_t inputs, int64_t hidden, int64_t classes)
      : fc1_(register_module("fc1", torch::nn::Linear(inputs, hidden))),
        fc2_(register_module("fc2", torch::nn::Linear(hidden, classes))) {
    // Flattened in NCHW order whatever the memory format. [N] is one value a sample.
    add_stage([this](const at::Tensor& input) {
      const at::Tensor rows = input.dim() > 1 ? input.flatten(1) : input.unsqueeze(1);
      return fc1_(at::isFloatingType(rows.scalar_type()) ? rows : rows.to(at::kFloat)).relu_();
    });
    add_module_stage(fc2_);
  }

 private:
  torch::nn::Linear fc1_, fc2_;
};

class SimpleCnn : public Chain {  // [N, 3, H, W] to [N, classes]
 public:
  SimpleCnn(double width, int64_t classes)
      : conv1_(register_module("conv1", ConvNorm(3, scaled(32, width)))),
        conv2_(register_module("conv2", ConvNorm(scaled(32, width), scaled(64, width)))),
        conv3_(register_module("conv3", ConvNorm(scaled(64, width), scaled(128, width)))),
        fc_(register_module("fc", torch::nn::Linear(scaled(128, width), classes))) {
    add_stage([this](const at::Tensor& images) { return at::max_pool2d(conv1_(images), 2); },
              conv1_);
    add_stage([this](const at::Tensor& x) { return at::max_pool2d(conv2_(x), 2); }, conv2_);
    add_module_stage(conv3_);
    add_stage([this](const at::Tensor& x) { return fc_(x.mean({2, 3})); });
  }

 private:
  ConvNorm conv1_, conv2_, conv3_;
  torch::nn::Linear fc_;
};

// [N, 3, H, W] to [N, classes]; names as in a torch.nn.Sequential. Each convolution after the first
// halves the image and doubles the channels, until one pixel is left.
class ToyCnn : public Chain {
 public:
  ToyCnn(int64_t channels, int64_t size, int64_t classes) {
    using torch::nn::Conv2d, torch::nn::Conv2dOptions;
    add(Conv2d(Conv2dOptions(3, channels, 1)), /*rectified=*/true);
    for (; size > 1; size /= 2, channels *= 2)
      add(Conv2d(Conv2dOptions(channels, channels * 2, 2).stride(2)), /*rectified=*/size > 3);
    torch::nn::Linear fc(channels, classes);
    register_module(std::to_string(next_), fc);
    add_stage([fc](const at::Tensor& x) mutable { return fc(x.flatten(1)); });
  }

 private:
  void add(torch::nn::Conv2d conv, bool rectified) {
    register_module(std::to_string(next_), conv);
    next_ += 2;  // skips the ReLU's index, and finally that of flatten
    add_stage([conv, rectified](const at::Tensor& x) mutable {
      const at::Tensor y = conv(x);
      return rectified ? at::relu(y) : y;
    });
  }

  int next_ = 0;
};

}  // namespace

std::unique_ptr<Model> make_mlp(const ModelOptions& options, const ModelInput& input) {
  require_one_size(options, input);
  int64_t values = 1;
  for (const int64_t size : input.batch_shape(1)) values *= size;
  return make_module_model<Mlp>(values, scaled(128, options.width), input.outputs);
}

std::unique_ptr<Model> make_simple_cnn(const ModelOptions& options, const ModelInput& input) {
  require_size(options, input, 4);
  return make_module_model<SimpleCnn>(options.width, input.outputs);
}

std::unique_ptr<Model> make_toy_cnn(const ModelOptions& options, const ModelInput& input) {
  constexpr int kMost = 511;  // one more doubling would need half a gigabyte of weights
  require_square(options, input);
  require_size(options, input, 2);
  const int side = input.size.width;
  if (side > kMost)
    fail(ErrorKind::kUsage,
         "toy_cnn takes images of at most " + std::to_string(kMost) + " pixels, not " +
             std::to_string(side),
         "augment.size", "Set augment.size=256, for which it was made");
  return make_module_model<ToyCnn>(scaled(16, options.width), side, input.outputs);
}

}  // namespace saturate
