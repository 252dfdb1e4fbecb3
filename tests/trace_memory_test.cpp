// Bytes of live tensors, their peak by phase, and the budget.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <thread>

#include "saturate/data/env.h"
#include "saturate/ledger.h"
#include "saturate/memory.h"
#include "tests/paths.h"
#include "trace/kept_blocks.h"

namespace saturate {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

class CpuMemoryTest : public ::testing::Test {
 protected:
  CpuMemoryTest() : before(memory.live_bytes()) { memory.take_peak(); }
  // More than before the test, in whole MiB.
  int64_t mib(int64_t count) const { return (count - before) / kMiB; }

  TensorMemory& memory = tensor_memory(at::kCPU);
  const int64_t before;
};

TEST_F(CpuMemoryTest, CountsLiveMemoryAndItsPeak) {
  at::Tensor kept = bytes(3 * kMiB);
  const at::Tensor view = kept.slice(0, 0, 5);
  bytes(4 * kMiB);
  EXPECT_EQ(mib(memory.live_bytes()), 3);
  EXPECT_EQ(mib(memory.take_peak()), 7);
  EXPECT_EQ(mib(memory.take_peak()), 3) << "a new peak starts at the live memory";
  kept.reset();
  EXPECT_EQ(mib(memory.live_bytes()), 3) << "the view still exists";
}

TEST_F(CpuMemoryTest, CountsEveryThread) {
  at::Tensor kept;
  std::thread([&] {
    kept = bytes(2 * kMiB);
    bytes(5 * kMiB);
  }).join();
  EXPECT_EQ(mib(memory.live_bytes()), 2);
  EXPECT_EQ(mib(memory.take_peak()), 7);
}

TEST_F(CpuMemoryTest, BeyondTheBudgetAllocationFails) {
  {
    const MemoryBudget budget(memory, before + 10 * kMiB);
    const at::Tensor kept = bytes(6 * kMiB);
    EXPECT_THROW(bytes(5 * kMiB), c10::OutOfMemoryError);
    EXPECT_EQ(mib(memory.live_bytes()), 6) << "a failed allocation is not counted";
    EXPECT_NO_THROW(bytes(3 * kMiB));
    {
      const MemoryBudget narrower(memory, before + 8 * kMiB);
      const MemoryBudget none(memory, 0);
      EXPECT_THROW(bytes(3 * kMiB), c10::OutOfMemoryError);
    }
    EXPECT_NO_THROW(bytes(3 * kMiB));
    try {
      bytes(50 * kMiB);
      FAIL();
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("52428800 bytes requested"), std::string::npos);
    }
  }
  EXPECT_EQ(memory.budget(), 0);
  EXPECT_NO_THROW(bytes(50 * kMiB));
}

// As of a trainer that is made before the one before it ends.
TEST_F(CpuMemoryTest, TheLastBudgetCountsInWhateverOrderTheyEnd) {
  const auto made = [&](int64_t mib) {
    return std::make_unique<MemoryBudget>(memory, mib > 0 ? before + mib * kMiB : 0);
  };
  auto first = made(10), second = made(8), none = made(0);
  first.reset();
  EXPECT_EQ(memory.budget(), before + 8 * kMiB);
  none.reset();
  EXPECT_EQ(memory.budget(), before + 8 * kMiB);
  first = made(20);
  second.reset();
  EXPECT_EQ(memory.budget(), before + 20 * kMiB);
  second = made(30);
  second.reset();
  EXPECT_EQ(memory.budget(), before + 20 * kMiB);
  memory.set_budget(before + 40 * kMiB);  // by the program
  first.reset();
  EXPECT_EQ(memory.budget(), before + 40 * kMiB);
  memory.set_budget(0);
}

TEST_F(CpuMemoryTest, AFailedAllocationOfTheSystemIsOutOfMemoryToo) {
  EXPECT_THROW(bytes(int64_t{1} << 55), c10::OutOfMemoryError);
  EXPECT_EQ(mib(memory.live_bytes()), 0);
}

TEST_F(CpuMemoryTest, FreedBlocksAreNotLiveAndServeTheirSizeOnly) {
  if (testing::kSanitized) GTEST_SKIP() << "nothing is kept under AddressSanitizer";
  keep_host_memory(true);
  bytes(20 * kMiB);  // freed blocks are limited by the former live memory
  const void* first = bytes(3 * kMiB).data_ptr();
  EXPECT_EQ(mib(memory.live_bytes()), 0);
  EXPECT_NE(bytes(2 * kMiB).data_ptr(), first);
  EXPECT_EQ(bytes(3 * kMiB).data_ptr(), first);
  const void* elsewhere = nullptr;
  std::thread([&] { elsewhere = bytes(3 * kMiB).data_ptr(); }).join();
  EXPECT_EQ(elsewhere, first);
  keep_host_memory(false);
}

// Blocks of sizes that are not requested again make room for others.
TEST_F(CpuMemoryTest, FreedAndLiveMemoryAreLimitedTogether) {
  if (testing::kSanitized) GTEST_SKIP() << "nothing is kept under AddressSanitizer";
  const auto in_use = [] {
    const auto info = mallinfo2();
    return int64_t(info.uordblks + info.hblkhd) / kMiB;
  };
  const int64_t at_first = in_use();
  keep_host_memory(true);
  bytes(200 * kMiB);
  EXPECT_GE(in_use() - at_first, 200) << "it is kept";
  {
    const at::Tensor other = bytes(190 * kMiB);
    EXPECT_LE(in_use() - at_first, 310);
  }
  keep_host_memory(false);
  EXPECT_LE(in_use() - at_first, 10);
}

TEST(KeptBlocks, TheNewestThatFitsIsReusedAndTheOldestAreFreed) {
  KeptBlocks kept;
  char block[5];
  const auto keep = [&](int which, size_t size, size_t most) {
    return kept.keep({block + which, size}, most).size();
  };
  constexpr size_t kSize = 100'000;
  EXPECT_EQ(keep(0, kSize, 4 * kSize), 0u);
  EXPECT_EQ(keep(1, kSize, 4 * kSize), 0u);
  EXPECT_EQ(keep(2, 2 * kSize, 4 * kSize), 0u);
  EXPECT_EQ(kept.take(kSize + 1), nullptr);
  EXPECT_EQ(kept.take(kSize - 5000), nullptr) << "more than a page would be wasted";
  EXPECT_EQ(kept.take(kSize - 4000), block + 1);
  EXPECT_EQ(keep(3, 2 * kSize, 4 * kSize), 1u);
  EXPECT_EQ(kept.take(kSize), nullptr) << "it was the oldest";
  EXPECT_EQ(keep(4, kSize, 0), 3u) << "itself too";
  EXPECT_TRUE(kept.shrink(0).empty());
}

TEST_F(CpuMemoryTest, ALedgerHasThePeakOfEachPhase) {
  Ledger ledger(Env::posix(), &memory);
  at::Tensor kept;
  {
    const Ledger::Scope forward(ledger, Phase::kForward);
    kept = bytes(3 * kMiB);
    bytes(4 * kMiB);
    const Ledger::Scope wait(ledger, Phase::kWait);
    bytes(1 * kMiB);
  }
  {
    const Ledger::Scope backward(ledger, Phase::kBackward);
    bytes(2 * kMiB);
  }
  const PhaseBytes peaks = ledger.take_memory_peaks();
  EXPECT_EQ(mib(peaks[Phase::kForward]), 7);
  EXPECT_EQ(mib(peaks[Phase::kWait]), 4);
  EXPECT_EQ(mib(peaks[Phase::kBackward]), 5);
  EXPECT_EQ(mib(peaks.largest()), 7);
  EXPECT_EQ(peaks[Phase::kOptimizer], 0);
  const PhaseBytes later = ledger.take_memory_peaks();
  EXPECT_EQ(later[Phase::kForward], 0);
  EXPECT_EQ(mib(later[Phase::kOther]), 3);
}

}  // namespace
}  // namespace saturate
