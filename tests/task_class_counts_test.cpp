// Pixels by class: the GPU's method of counting, compared with the CPU's and a plain loop.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "saturate/memory.h"
#include "saturate/train_step.h"
#include "task/class_counts.h"
#include "tests/class_counts_testing.h"

namespace saturate {
namespace {

TEST(ClassCounts, BothMethodsEqualAPlainLoop) {
  for (const auto& [classes, side] : testing::kCountCases) {
    const testing::CountedPixels pixels(classes, side);
    const at::Tensor expected = pixels.by_a_loop();
    EXPECT_TRUE(count_classes(pixels.labels, pixels.found, pixels.counted, classes).equal(expected))
        << classes;
    EXPECT_TRUE(
        count_classes_spread(pixels.labels, pixels.found, pixels.counted, classes).equal(expected))
        << classes;
  }
}

// A table of label by prediction would take 3.8 GB.
TEST(ClassCounts, ManyClassesTakeLittleMemory) {
  constexpr int64_t kMany = 21'841;
  at::Tensor logits = at::zeros({1, kMany, 4, 4});
  logits.select(1, 7).fill_(1);
  at::Tensor labels = at::full({1, 4, 4}, 7, at::kLong);
  labels.select(1, 0).fill_(kMany - 1);
  TensorMemory& memory = tensor_memory(at::kCPU);
  const MemoryBudget budget(memory, memory.live_bytes() + (int64_t{32} << 20));
  RunningMetrics metrics(segmentation());
  for (int i = 0; i < 2; ++i) metrics.add(at::full({}, 0.5), logits, labels);
  count_classes_spread(labels, logits.argmax(1), labels.ge(0), kMany);
  const Metrics found = metrics.read();
  ASSERT_EQ(found.pixels.size(), size_t(kMany));
  EXPECT_EQ(found.pixels[7].hits, 24);
  EXPECT_EQ(found.pixels[7].labelled, 24);
  EXPECT_EQ(found.pixels[7].predicted, 32);
  EXPECT_EQ(found.pixels[kMany - 1].labelled, 8);
  EXPECT_EQ(found.value("accuracy"), 0.75);
}

}  // namespace
}  // namespace saturate
