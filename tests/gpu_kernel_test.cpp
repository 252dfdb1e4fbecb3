// The CUDA launchers against the CPU's: the same pixel functions, so the same bits.
#ifdef SATURATE_HAS_CUDA
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include "saturate/pixel.h"
#include "tests/gpu_testing.h"

namespace saturate {
namespace {

TEST(GpuKernel, FinishedBatchesEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const int size : {1, 7, 32, 224}) {
    const int64_t count = 9;
    const at::Tensor pixels = at::randint(256, {count, size, size, 3}, at::kByte);
    const at::Tensor flips = at::randint(2, {count}, at::kByte);
    const Normalize normalize{{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}};
    const at::Tensor expected = at::empty({count, size, size, 3}, at::kFloat);
    finish_batch_cpu(pixels.const_data_ptr<uint8_t>(), flips.const_data_ptr<uint8_t>(), count, size,
                     normalize, expected.mutable_data_ptr<float>());

    const at::Tensor on_gpu = pixels.to(at::kCUDA), flips_on_gpu = flips.to(at::kCUDA);
    const at::Tensor found = at::empty(expected.sizes(), expected.options().device(at::kCUDA));
    finish_batch_cuda(on_gpu.const_data_ptr<uint8_t>(), flips_on_gpu.const_data_ptr<uint8_t>(),
                      count, size, normalize, found.mutable_data_ptr<float>(),
                      /*stream=*/nullptr);  // the default one, which is torch's too
    EXPECT_TRUE(at::equal(found.cpu(), expected)) << "size " << size;
  }
}

}  // namespace
}  // namespace saturate
#endif
