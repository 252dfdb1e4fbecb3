// A GPU's own code paths compared with the CPU's: SyncBatchNorm's local work, pixels by class, the
// loss of a language model, the copies of a checkpoint, an evaluation's pipeline.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "model/factories.h"
#include "run/checkpoint.h"
#include "run/staged_copy.h"
#include "task/class_counts.h"
#include "tests/app_testing.h"
#include "tests/class_counts_testing.h"
#include "tests/gpu_testing.h"
#include "tests/local_norm_testing.h"
#include "tests/token_testing.h"

namespace saturate::testing {
namespace {

TEST(GpuTwins, SyncBatchNormEqualsTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const auto& [counts, side] : kNormCases)
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16})
      for (const bool channels_last : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(counts) + " " + c10::toString(type) +
                     (channels_last ? " channels_last" : ""));
        const auto inputs = norm_images("norm.x", counts, side),
                   gradients = norm_images("norm.dy", counts, side);
        const NormedShares cpu = norm_shares(inputs, gradients, at::kCPU, type, channels_last);
        const NormedShares gpu = norm_shares(inputs, gradients, at::kCUDA, type, channels_last);
        const double tolerance = type == at::kFloat ? 1e-4 : type == at::kHalf ? 1e-2 : 6e-2;
        const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
          EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance)) << what;
        };
        expect_near(at::cat(gpu.outputs), at::cat(cpu.outputs), "outputs");
        // With two values per channel the gradient is a difference of large numbers.
        if (side > 1) {
          expect_near(at::cat(gpu.to_inputs), at::cat(cpu.to_inputs), "to inputs");
          expect_near(gpu.to_weight, cpu.to_weight, "to weight");
        }
        expect_near(gpu.to_bias, cpu.to_bias, "to bias");
        expect_near(gpu.running_mean, cpu.running_mean, "running mean");
        expect_near(gpu.running_var, cpu.running_var, "running variance");
      }
}

TEST(GpuTwins, PixelsByClassEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const auto& [classes, side] : kCountCases) {
    const CountedPixels pixels(classes, side);
    const at::Tensor found = count_classes(pixels.labels.to(at::kCUDA), pixels.found.to(at::kCUDA),
                                           pixels.counted.to(at::kCUDA), classes);
    EXPECT_TRUE(found.cpu().equal(pixels.by_a_loop())) << classes;
  }
}

// See TokenPasses: with 50,259 classes rows begin at multiples of an access, as GPT-2's.
TEST(GpuTwins, TokenLossesEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t vocabulary : {1, 2, 66, 1004, 50259})
      for (const int64_t first : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << type << " " << vocabulary << " " << first);
        TokenCase tokens(vocabulary, type, first);
        expect_same(tokens.by_tensors(at::kCUDA), tokens.by_tensors(), type);
        tokens.spoil();
        expect_same(tokens.by_tensors(at::kCUDA), tokens.by_tensors(), type);
      }
  const at::Tensor none = at::empty({0, 5}, at::TensorOptions(at::kCUDA)).requires_grad_();
  token_loss(none, at::empty({0}, none.options().dtype(at::kLong))).backward();
  EXPECT_EQ(none.grad().numel(), 0);
}

TEST(GpuTwins, GradientsThroughAPaddedProductEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 64, 32}), weight = at::randn({1003, 32}) / 4;
  const at::Tensor labels = at::randint(1003, {2, 64});
  std::vector<at::Tensor> found;
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA)}) {
    const auto leaf = [&](const at::Tensor& tensor) {
      return tensor.to(device, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    };
    const at::Tensor in = leaf(x), w = leaf(weight);
    const at::Tensor logits = device.is_cpu() ? at::linear(in, w) : padded_linear(in, w, 64);
    const at::Tensor loss = token_loss(logits, labels.to(device));
    loss.backward();
    for (const at::Tensor& tensor : {loss.detach(), in.grad(), w.grad()})
      found.push_back(tensor.cpu());
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(found[3 + i], found[i], 1e-3, 1e-6)) << i;
}

// Enqueued after work that keeps the GPU busy, and before work that overwrites the source.
TEST(GpuTwins, CheckpointsHaveTheValuesAtTheTimeOfTheRequest) {
  SATURATE_NEEDS_GPU();
  const TempDir dir;
  const at::Device device(at::kCUDA, 0);
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  CheckpointWriter writer(Env::posix(), store, make_staged_copy(device));
  const at::Tensor filter = at::arange(512 * 256 * 9, at::kFloat).reshape({512, 256, 3, 3});
  const at::Tensor there = filter.to(device).contiguous(at::MemoryFormat::ChannelsLast);
  for (const int64_t step : {1, 2}) {
    at::Tensor product = at::rand({4096, 4096}, device);
    // Values stay within [0, 1]: a sum that is not finite would spoil what is copied.
    for (int i = 0; i < 20; ++i) product = product.matmul(product) / 4096;
    there.copy_(filter.to(device) + double(step) + product.sum() * 0);
    Checkpoint checkpoint;
    checkpoint.position.step = step;
    checkpoint.model = {{"filter", there}, {"on_host", at::arange(5)}};
    writer.start(checkpoint);
    there.fill_(-1);
    const auto outcome = writer.wait();
    ASSERT_TRUE(outcome && !outcome->error);
    for (const auto& [name, tensor] : read_checkpoint(Env::posix(), outcome->path).model)
      EXPECT_TRUE(name == "filter" ? tensor.equal(filter + double(step))
                                   : tensor.equal(at::arange(5)))
          << name;
  }
}

class GpuTwinRuns : public TrainingTest {};

TEST_F(GpuTwinRuns, AnEvaluationThroughAPipelineGivesTheSerialMetrics) {
  SATURATE_NEEDS_GPU();
  std::vector<std::vector<double>> found;
  for (const char* copy : {"false", "true"}) {
    const std::string name = std::string("copy_") + copy;
    const CommandResult result = train(
        name, {"train.device=cuda", "precision.mode=fp32", std::string("pipeline.copy=") + copy});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    found.push_back(losses(dir / name, "eval"));
  }
  ASSERT_FALSE(found[0].empty());
  ASSERT_EQ(found[0].size(), found[1].size());
  EXPECT_NEAR(found[0][0], found[1][0], 1e-2);
}

}  // namespace
}  // namespace saturate::testing
