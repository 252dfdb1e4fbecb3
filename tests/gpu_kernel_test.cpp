// The CUDA launcher against the CPU's: the same passes over the same pixels.
#ifdef SATURATE_HAS_CUDA
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randint.h>

#include "saturate/effects.h"
#include "tests/gpu_testing.h"

namespace saturate {
namespace {

constexpr int64_t kCount = 64;

// Lists drawn as a run draws them, with everything switched on.
std::vector<EffectList> drawn_lists(int size) {
  AugmentOptions options;
  options.size = size;
  options.rotate = 30;
  options.brightness = options.contrast = options.saturation = 0.4;
  options.hue = 0.1;
  options.grey = options.blur = options.erase = 0.5;
  std::vector<EffectList> lists;
  for (uint64_t index = 0; index < kCount; ++index)
    lists.push_back(draw_effects(options, {1, 0, index}));
  return lists;
}

TEST(GpuKernel, FinishedBatchesFollowTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const int size : {7, 32, 224}) {
    std::vector<EffectList> lists = drawn_lists(size);
    const at::Tensor images = at::randint(256, {kCount, size, size, 3}, at::kByte);
    const at::Tensor list_bytes = at::from_blob(
        lists.data(), {int64_t(lists.size() * sizeof(EffectList))}, at::TensorOptions(at::kByte));
    const auto finish = [&](const at::Device& device) {
      at::Tensor pixels = images.to(device, /*non_blocking=*/false, /*copy=*/true);
      at::Tensor spare = at::empty_like(pixels), effects = list_bytes.to(device);
      at::Tensor out = at::empty(pixels.sizes(), pixels.options().dtype(at::kFloat));
      const FinishBatch batch{pixels.mutable_data_ptr<uint8_t>(),
                              reinterpret_cast<const EffectList*>(effects.const_data_ptr()),
                              spare.mutable_data_ptr<uint8_t>(),
                              kCount,
                              size,
                              {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}},
                              out.mutable_data_ptr<float>()};
      // The default stream, which is torch's too.
      device.is_cuda() ? finish_batch_cuda(batch, nullptr) : finish_batch_cpu(batch);
      return out.cpu();
    };
    const at::Tensor difference = (finish(at::kCUDA) - finish(at::kCPU)).abs();
    // A blur's weights may differ in their last bits, and so a level here and there.
    EXPECT_LE(difference.max().item<float>(), 0.02) << "size " << size;
    EXPECT_LE((difference > 1e-6).to(at::kDouble).mean().item<double>(), 1e-3) << "size " << size;
  }
}

}  // namespace
}  // namespace saturate
#endif
