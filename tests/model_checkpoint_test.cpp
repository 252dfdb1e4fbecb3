// Gradient checkpointing against the same network without it.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>

#include <thread>

#include "saturate/batch_norm.h"
#include "saturate/data/error.h"
#include "saturate/gradient_checkpoint.h"
#include "saturate/memory.h"
#include "step/precision.h"

namespace saturate {
namespace {

namespace nn = torch::nn;

// relu of a BatchNorm in a residual branch, then dropout: everything that recomputation may get
// wrong.
class UnitImpl : public nn::Module {
 public:
  explicit UnitImpl(int64_t channels)
      : conv_(register_module("conv",
                              nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1)))),
        norm_(register_module("norm", nn::BatchNorm2d(channels))),
        dropout_(register_module("dropout", nn::Dropout(0.3))) {}
  at::Tensor forward(const at::Tensor& x) { return dropout_((x + norm_(conv_(x))).relu_()); }

 private:
  nn::Conv2d conv_;
  nn::BatchNorm2d norm_;
  nn::Dropout dropout_;
};
TORCH_MODULE(Unit);

nn::Sequential make_network(int units) {
  at::manual_seed(1);
  nn::Sequential network;
  for (int i = 0; i < units; ++i) network->push_back(Unit(4));
  return network;
}

// All results of a step: the output, gradients, buffers, torch's random state.
std::vector<at::Tensor> traces_of(int64_t segments, PrecisionMode mode, bool wants_input_gradient) {
  nn::Sequential network = make_network(6);
  const auto stages = stages_of(*network);
  std::vector<at::Tensor> traces;
  at::Tensor input = at::randn({3, 4, 5, 5}).requires_grad_(wants_input_gradient);
  at::manual_seed(7);
  for (int step = 0; step < 2; ++step) {
    at::Tensor output;
    {
      const AutocastScope autocast(mode, at::kCPU);
      output =
          segments == 0 ? network->forward(input) : checkpoint_sequential(stages, segments, input);
    }
    output.to(at::kFloat).square().sum().backward();
    traces.push_back(output.detach());
  }
  for (const auto& parameter : network->parameters()) traces.push_back(parameter.grad());
  for (const auto& buffer : network->buffers()) traces.push_back(buffer);
  if (wants_input_gradient) traces.push_back(input.grad());
  traces.push_back(at::globalContext().defaultGenerator(at::kCPU).get_state());
  return traces;
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].defined()) << i;
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

TEST(Checkpoint, LeavesTheSameStateAsAPlainRun) {
  for (const PrecisionMode mode : {PrecisionMode::kFp32, PrecisionMode::kBf16}) {
    for (const bool wants_input_gradient : {false, true}) {
      const auto plain = traces_of(0, mode, wants_input_gradient);
      for (const int64_t segments : {1, 2, 3, 4, 6, 9}) {
        SCOPED_TRACE(segments);
        expect_same(traces_of(segments, mode, wants_input_gradient), plain);
      }
    }
  }
}

// Stages that keep two tensors of `kBlock` floats each for backward: their input and their output.
constexpr int64_t kBlock = 1 << 14;

int64_t peak_bytes(int64_t depth, int64_t segments) {
  std::vector<Stage> stages;
  const at::Tensor weight = at::randn({kBlock}).requires_grad_();
  for (int64_t i = 0; i < depth; ++i)
    stages.push_back({[weight](const at::Tensor& x) { return at::tanh(x * weight); }});
  const at::Tensor input = at::randn({kBlock});
  TensorMemory& memory = tensor_memory(at::kCPU);
  const int64_t before = memory.live_bytes();
  memory.take_peak();
  checkpoint_sequential(stages, segments, input).sum().backward();
  return memory.take_peak() - before;
}

TEST(Checkpoint, PeakMemoryGrowsWithTheSquareRootOfTheDepth) {
  const double block = double(kBlock) * sizeof(float);
  for (const int64_t depth : {16, 64, 256}) {
    const int64_t root = automatic_segments(size_t(depth));
    EXPECT_EQ(root * root, depth);
    const double plain = double(peak_bytes(depth, 0)) / block;
    const double segmented = double(peak_bytes(depth, root)) / block;
    EXPECT_GT(plain, 0.99 * double(depth)) << depth;
    // The inputs of the segments, one segment's tensors, and backward's own memory.
    EXPECT_LT(segmented, 3.0 * double(root) + 6) << depth;
  }
}

TEST(Checkpoint, ComputesEachSegmentButTheLastTwice) {
  std::vector<int> runs(4);
  std::vector<bool> again;
  std::vector<Stage> stages;
  const at::Tensor weight = at::randn({3}).requires_grad_();
  for (size_t i = 0; i < runs.size(); ++i)
    stages.push_back({[&, i](const at::Tensor& x) {
      ++runs[i];
      again.push_back(recomputing());
      return x * weight;
    }});
  checkpoint_sequential(stages, 2, at::randn({3})).sum().backward();
  EXPECT_EQ(runs, (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(again, (std::vector<bool>{false, false, false, false, true, true}));
  EXPECT_FALSE(recomputing());
  const at::NoGradGuard no_grad;
  checkpoint_sequential(stages, 4, at::randn({3}));
  EXPECT_EQ(runs, (std::vector<int>{3, 3, 2, 2})) << "once without gradients";
}

// The first run's cast without gradients must not be in autocast's cache at the second use.
TEST(Checkpoint, AWeightOfTwoSegmentsGetsBothGradientsUnderAutocast) {
  const auto gradient = [](int64_t segments) {
    at::manual_seed(3);
    const at::Tensor weight = at::randn({4, 4}).requires_grad_(), input = at::randn({2, 4});
    const Stage stage{[weight](const at::Tensor& x) { return at::linear(x, weight); }};
    at::Tensor output;
    {
      const AutocastScope autocast(PrecisionMode::kBf16, at::kCPU);
      output = checkpoint_sequential({stage, stage, stage}, segments, input);
    }
    output.to(at::kFloat).sum().backward();
    return weight.grad();
  };
  const at::Tensor plain = gradient(0), found = gradient(3);
  EXPECT_LT((found - plain).abs().max().item<float>(), 0.02 * plain.abs().max().item<float>());
}

TEST(Checkpoint, FrozenParametersGetNoGradient) {
  const at::Tensor frozen = at::randn({3}), weight = at::randn({3}).requires_grad_();
  const std::vector<Stage> stages = {{[&](const at::Tensor& x) { return x * frozen; }},
                                     {[&](const at::Tensor& x) { return x * weight; }}};
  const at::Tensor input = at::randn({3});
  checkpoint_sequential(stages, 2, input).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), input * frozen));
  EXPECT_FALSE(frozen.grad().defined());
}

// Backward runs on a separate thread for each GPU.
TEST(Checkpoint, RecomputationOnAnotherThreadNormalisesAlike) {
  int runs = 0;
  BatchNorm2d norm(4);
  const at::Tensor weight = at::randn({1, 4, 1, 1}).requires_grad_(),
                   input = at::randn({3, 4, 5, 5});
  norm->set_hook([&](const BatchNorm2dImpl&, const at::Tensor& x) {
    ++runs;
    return x * 2;
  });
  const at::Tensor loss =
      checkpoint({[&](const at::Tensor& x) { return norm(x * weight); }, norm->buffers()}, input)
          .sum();
  std::thread([&] { loss.backward(); }).join();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::allclose(weight.grad(), input.sum({0, 2, 3}, /*keepdim=*/true) * 2, 1e-4, 1e-4));
}

TEST(Checkpoint, TheNextSegmentMayChangeAView) {
  const at::Tensor weight = at::randn({6}).requires_grad_();
  const std::vector<Stage> stages = {{[&](const at::Tensor& x) {
                                       return (x * weight).view({2, 3});
                                     }},
                                     {[&](const at::Tensor& x) { return (x * 2).flatten(); }}};
  at::Tensor output = checkpoint_sequential(stages, 2, at::zeros({6}) + 1);
  checkpoint(stages[0], output).relu_().sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

template <class Body>
void expect_run_error(const Body& body, const std::string& part) {
  try {
    body();
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, UnsupportedUsesAreRefused) {
  const at::Tensor weight = at::randn({3}).requires_grad_();
  expect_run_error(
      [&] {
        const at::Tensor x = weight * 2;
        checkpoint({[](const at::Tensor& input) { return at::Tensor(input).relu_(); }}, x);
      },
      "changes its input in place");
  const at::Tensor output =
      checkpoint({[&](const at::Tensor& input) { return input * weight; }}, at::randn({3}));
  expect_run_error([&] { output.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
                   "no second derivative");
}

TEST(Checkpoint, AGraphIsFreedAfterBackward) {
  const at::Tensor weight = at::randn({3}).requires_grad_();
  const at::Tensor input = weight * 2;
  const at::Tensor loss = checkpoint({[](const at::Tensor& x) { return x * x; }}, input).sum();
  loss.backward();
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace saturate
