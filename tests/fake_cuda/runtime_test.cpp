// The fake runtime itself, which the other tests rely on.
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include "model/factories.h"
#include "saturate/data/effects.h"
#include "step/step_graph.h"
#include "task/token_kernels.h"
#include "tests/fake_cuda/host_testing.h"
#include "tests/token_testing.h"
#include "tests/unpack_testing.h"

namespace saturate::testing {
namespace {

class FakeRuntime : public OnFakeCuda {};

Counts counted(const std::function<void()>& action) {
  const Counts before = counts_now();
  action();
  return counts_now() - before;
}

TEST_F(FakeRuntime, CountsLaunchesAndCopiesByKind) {
  const at::Tensor host = at::ones({1000}), pinned = host.pin_memory();
  at::Tensor device = host.to(at::kCUDA);
  const Counts found = counted([&] {
    device.copy_(pinned, /*non_blocking=*/true);
    device.add_(1);
    device.copy_(device.clone());
  });
  EXPECT_EQ(of(found, Count::kPinnedCopies), 1);
  EXPECT_EQ(of(found, Count::kPageableCopies), 0);
  EXPECT_EQ(of(found, Count::kLaunches), 1);
  EXPECT_EQ(of(found, Count::kDeviceCopies), 2);
  EXPECT_EQ(of(found, Count::kWaits), 0);
}

TEST_F(FakeRuntime, NamesCallersOfWaitsAndOfPageableCopies) {
  const at::Tensor host = at::ones({1000});
  at::Tensor device = host.to(at::kCUDA);
  fake_cuda::control()->take_sites();
  Counts found = counted([&] { device.sum().item<float>(); });
  EXPECT_GE(of(found, Count::kWaits), 1);
  EXPECT_NE(std::string(fake_cuda::control()->take_sites()).find("_local_scalar_dense"),
            std::string::npos);
  found = counted([&] { device.copy_(host, /*non_blocking=*/true); });
  EXPECT_EQ(of(found, Count::kPageableCopies), 1);
  EXPECT_NE(std::string(fake_cuda::control()->take_sites()).find("a copy of pageable memory"),
            std::string::npos);
}

TEST_F(FakeRuntime, HasLimitedMemory) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  const Counts found = counted([] {
    EXPECT_NO_THROW(at::empty({int64_t{6} << 30}, at::device(at::kCUDA).dtype(at::kByte)));
    c10::cuda::CUDACachingAllocator::emptyCache();
    EXPECT_THROW(at::empty({int64_t{9} << 30}, at::device(at::kCUDA).dtype(at::kByte)),
                 c10::OutOfMemoryError);
  });
  EXPECT_EQ(of(found, Count::kLiveBytes), 0);
  EXPECT_GE(of(counts_now(), Count::kPeakBytes), int64_t{6} << 30);
}

TEST_F(FakeRuntime, FailsAsPlanned) {
  at::Tensor device = at::ones({1000}).to(at::kCUDA);
  fake_cuda::control()->fail("cudaLaunchKernel", 2, 700);
  EXPECT_NO_THROW(device.add_(1));
  EXPECT_THROW(device.add_(1), c10::Error);
  EXPECT_NO_THROW(device.add_(1));
}

// Captures on a stream of the pool.
template <class Body>
void capture(at::cuda::CUDAGraph& graph, const Body& body) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  body();
  graph.capture_end();
}

TEST_F(FakeRuntime, ReplaysACapture) {
  const at::Tensor from = at::ones({10}).pin_memory();
  at::Tensor to = at::arange(3, 13).to(at::kFloat).to(at::kCUDA);
  at::cuda::CUDAGraph graph;
  const Counts recorded = counted([&] { capture(graph, [&] { to.copy_(from, true); }); });
  EXPECT_EQ(of(recorded, Count::kNodes), 1);
  EXPECT_EQ(of(recorded, Count::kPinnedCopies), 0);
  EXPECT_EQ(to.cpu()[0].item<float>(), 3) << "captured, not executed";
  const Counts replayed = counted([&] { graph.replay(); });
  EXPECT_EQ(of(replayed, Count::kGraphLaunches), 1);
  EXPECT_EQ(to.cpu()[0].item<float>(), 1);
}

TEST_F(FakeRuntime, AWaitInvalidatesACapture) {
  const at::Tensor device = at::ones({10}).to(at::kCUDA);
  // Not torch's own graph, which leaves its allocator capturing.
  const auto graph = make_cuda_graph(device.device());
  EXPECT_THROW(graph->capture([&] { device.sum().item<float>(); }), c10::Error);
}

TEST_F(FakeRuntime, RunsTheCpuTwinOfOurKernel) {
  constexpr int64_t kImages = 5, kSide = 64;  // two blocks per image
  std::vector<EffectList> lists(kImages);
  for (EffectList& list : lists) list.add(EffectKind::kBrightness, 1.5f);
  const at::Tensor images = at::randint(256, {kImages, kSide, kSide, 3}, at::kByte);
  const at::Tensor bytes = at::from_blob(lists.data(), {int64_t(lists.size() * sizeof(EffectList))},
                                         at::TensorOptions(at::kByte));
  const auto finish = [&](const at::Device& device) {
    at::Tensor pixels = images.to(device, false, /*copy=*/true), spare = at::empty_like(pixels);
    const at::Tensor effects = bytes.to(device);
    at::Tensor out = at::empty(pixels.sizes(), pixels.options().dtype(at::kFloat));
    const FinishArguments batch{pixels.mutable_data_ptr<uint8_t>(),
                                reinterpret_cast<const EffectList*>(effects.const_data_ptr()),
                                spare.mutable_data_ptr<uint8_t>(),
                                kImages,
                                int(kSide),
                                {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}},
                                out.mutable_data_ptr<float>()};
    device.is_cuda() ? finish_batch_cuda(batch, nullptr) : finish_batch_cpu(batch);
    return out.cpu();
  };
  const at::Tensor expected = finish(at::kCPU);
  const Counts found = counted([&] { EXPECT_TRUE(finish(at::kCUDA).equal(expected)); });
  EXPECT_EQ(of(found, Count::kTwins), 1);
}

TEST_F(FakeRuntime, RunsTheCpuTwinOfTheVolumesKernel) {
  constexpr int64_t kVolumes = 3;
  const VolumeForm form{{9, 10, 40}, {8, 8, 32}, 2};
  std::vector<VolumeEffects> effects(kVolumes);
  effects[1].matrix[1] = effects[1].matrix[6] = 0.3f;
  effects[2].noise = 0.1f;
  const at::Tensor volumes = at::rand({kVolumes, 9, 10, 40, 2});
  const at::Tensor bytes =
      at::from_blob(effects.data(), {int64_t(effects.size() * sizeof(VolumeEffects))},
                    at::TensorOptions(at::kByte));
  const auto transform = [&](const at::Device& device) {
    const at::Tensor in = volumes.to(device), records = bytes.to(device);
    const at::Tensor out = at::empty({kVolumes, 8, 8, 32, 2}, in.options());
    const VolumeArguments batch{form, in.const_data_ptr(),
                                static_cast<const VolumeEffects*>(records.const_data_ptr()),
                                out.mutable_data_ptr(), kVolumes};
    device.is_cuda() ? transform_volumes_cuda(batch, nullptr) : transform_volumes_cpu(batch);
    return out.cpu();
  };
  const at::Tensor expected = transform(at::kCPU);
  const Counts found = counted([&] { EXPECT_TRUE(transform(at::kCUDA).equal(expected)); });
  EXPECT_EQ(of(found, Count::kTwins), 1);
}

TEST_F(FakeRuntime, RunsTheCpuTwinsOfTheTokenLoss) {
  const TokenCase tokens(65, at::kBFloat16);
  const TokenResults expected = tokens.by_passes();
  const at::Tensor logits = tokens.wide.to(at::kCUDA).narrow(1, 0, tokens.classes);
  const at::Tensor labels = tokens.labels.to(at::kCUDA);
  const double factor = tokens.scale() / TokenCase::kCounting;
  const at::Tensor factors = (tokens.labels.ge(0).to(at::kFloat) * factor).to(at::kCUDA);
  RowSums sums;
  at::Tensor gradient, hits;
  const Counts found = counted([&] {
    sums = sum_token_rows(logits, labels);
    gradient = token_rows_gradient(logits, labels, sums, factors);
    hits = token_row_hits(logits, labels);
  });
  EXPECT_EQ(of(found, Count::kTwins), 3);
  EXPECT_EQ(of(found, Count::kLaunches), 3);
  EXPECT_EQ(of(found, Count::kWaits), 0);
  EXPECT_NEAR(sums.losses.cpu().sum().item<double>() / TokenCase::kCounting,
              expected.loss.item<double>(), 1e-5);
  EXPECT_EQ(hits.cpu().sum().item<int64_t>(), expected.hits.item<int64_t>());
  // In one piece: a copy of rows with gaps would be a kernel of torch's.
  const int64_t stride = logits.stride(0);
  EXPECT_EQ(gradient.stride(0), stride) << "so that both are read by whole accesses";
  const at::Tensor rows = gradient.as_strided({TokenCase::kRows, stride}, {stride, 1}).cpu();
  EXPECT_TRUE(at::allclose(rows.narrow(1, 0, tokens.classes).to(at::kFloat),
                           expected.gradient.to(at::kFloat), 1e-2, 1e-4));
}

// The kernel writes it with room for the zeros of the padded product.
TEST_F(FakeRuntime, TheGradientOfPaddedLogitsIsHeldOnce) {
  constexpr int64_t kRows = 256, kClasses = 16003, kBytes = kRows * 16064 * 4;
  const at::TensorOptions gpu(at::kCUDA);
  const at::Tensor x = at::ones({kRows, 8}, gpu);
  const at::Tensor weight = at::ones({kClasses, 8}, gpu).requires_grad_();
  const at::Tensor labels = at::ones({kRows}, gpu.dtype(at::kLong));
  const auto logits = [&] { return padded_linear(x, weight, 64); };
  token_loss(logits(), labels).backward();  // allocates the workspace of the products
  const at::Tensor held = logits(), loss = token_loss(held, labels);  // a step holds them too
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  const auto bytes = [&] { return allocator->getDeviceStats(0).allocated_bytes[0]; };
  const int64_t before = bytes().current;
  allocator->resetPeakStats(0);
  loss.backward();
  EXPECT_GE(bytes().peak - before, kBytes);
  EXPECT_LT(bytes().peak - before, kBytes * 3 / 2);
}

TEST_F(FakeRuntime, RunsTheCpuTwinOfTheUnpackingKernel) {
  MixedBatch drawn(6);
  const ImageSize size = drawn.size;
  const auto bytes = int64_t(pixel_bytes(size));
  drawn.damage(2);
  const Counts found = counted([&] {
    const at::TensorOptions options(at::kByte);
    const auto copied = [&](void* from, size_t count) {
      return at::from_blob(from, {int64_t(count)}, options).to(at::kCUDA);
    };
    const at::Tensor memory = copied(drawn.memory.data(), drawn.memory.size());
    const at::Tensor places = copied(drawn.places.data(), 6 * sizeof(PackedPlace));
    const at::Tensor out = at::empty({6 * bytes}, memory.options());
    const at::Tensor failed = at::empty({6}, memory.options());
    const at::Tensor scratch =
        at::empty({unpack_teams(6) * int64_t(unpack_scratch_bytes(size))}, memory.options());
    unpack_jpegs_cuda({.memory = static_cast<const std::byte*>(memory.const_data_ptr()),
                       .places = static_cast<const PackedPlace*>(places.const_data_ptr()),
                       .count = 6,
                       .size = size,
                       .scratch = scratch.mutable_data_ptr<uint8_t>(),
                       .out = out.mutable_data_ptr<uint8_t>(),
                       .failed = failed.mutable_data_ptr<uint8_t>()},
                      nullptr);
    EXPECT_TRUE(out.cpu().equal(at::from_blob(drawn.expected.data(), {6 * bytes}, options)));
    EXPECT_EQ(failed.cpu().sum().item<int64_t>(), 1);
  });
  EXPECT_EQ(of(found, Count::kTwins), 1);
}

}  // namespace
}  // namespace saturate::testing
