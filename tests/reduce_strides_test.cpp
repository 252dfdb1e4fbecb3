// Gradients whose strides a convolution has chosen, in c10d's reducer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>

#include "saturate/gradient_reducer.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::run_ranks;
using testing::symmetric;

class KeptWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    text_ += warning.msg() + "\n";
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

// Sizes for which torch chooses channels_last strides on a CPU.
at::Tensor loss_of(const std::vector<NamedTensor>& filters, bool channels_last) {
  at::Tensor images = symmetric("images", {32, 32, 6, 6}, 1);
  if (channels_last) images = images.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor found = at::conv2d(images, filters[0].tensor),
                   signal = at::conv1d(images.flatten(2), filters[1].tensor),
                   column = at::matmul(images.flatten(2).transpose(1, 2), filters[2].tensor.t());
  return found.square().sum() + signal.square().sum() + column.square().sum();
}

// As of torch::nn's convolutions of one pixel, and a linear layer of one output.
std::vector<NamedTensor> make_filters(bool channels_last) {
  std::vector<NamedTensor> filters = {{"image", symmetric("image", {4, 32, 1, 1}, 1)},
                                      {"signal", symmetric("signal", {4, 32, 1}, 1)},
                                      {"line", symmetric("line", {1, 32}, 1)}};
  if (channels_last)
    filters[0].tensor = filters[0].tensor.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto& [name, tensor] : filters) tensor.set_requires_grad(true);
  return filters;
}

TEST(GradientReducer, AcceptsTheStridesOfConvolutionsWithoutAWarning) {
  const c10::WarningUtils::WarnAlways always;
  for (const bool channels_last : {false, true}) {
    const auto alone = make_filters(channels_last);
    loss_of(alone, channels_last).backward();
    run_ranks(2, [&](Group& group) {
      KeptWarnings kept;
      const c10::WarningUtils::WarningHandlerGuard guard(&kept);
      const auto filters = make_filters(channels_last);
      {
        GradientReducer reducer(group, filters, {});
        for (int step = 0; step < 3; ++step) {
          reducer.before_forward();
          for (const auto& [name, tensor] : filters) tensor.mutable_grad().reset();
          reducer.backward(loss_of(filters, channels_last), /*reduce=*/true);
          for (size_t i = 0; i < filters.size(); ++i) {
            const at::Tensor& gradient = filters[i].tensor.grad();
            EXPECT_TRUE(at::allclose(gradient, alone[i].tensor.grad() * 2)) << filters[i].name;
            EXPECT_EQ(gradient.strides(), filters[i].tensor.strides()) << filters[i].name;
          }
        }
      }
      EXPECT_EQ(kept.text(), "") << channels_last;
    });
  }
}

}  // namespace
}  // namespace saturate
