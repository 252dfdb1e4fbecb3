// Budgets of a step's host work on a GPU: no wait for the device, no copy of pageable memory, no
// memory from the driver, and a captured step is one launch. Budgets of memory.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <bit>

#include "feed/batch_stages.h"
#include "run/batch_search.h"
#include "saturate/memory.h"
#include "tests/fake_cuda/host_testing.h"

namespace saturate::testing {
namespace {

const at::Device kGpu(at::kCUDA, 0);

struct Case {
  const char* name;
  std::vector<std::string> settings;
  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }
};

class Budget : public OnFakeCuda, public ::testing::WithParamInterface<Case> {};

TEST_P(Budget, OfAStepIsKept) {
  const HostRun run = run_on_host(host_recipe(GetParam().settings), dir / "run");
  ASSERT_EQ(run.result.steps, kHostSteps);
  for (size_t i = kSettled; i < kSteadyEnd; ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1) + ": " + to_text(run.steps[i]));
    for (const Count none : {Count::kWaits, Count::kPageableCopies, Count::kDeviceAllocations,
                             Count::kPinnedAllocations, Count::kStrays})
      ASSERT_EQ(of(run.steps[i], none), 0) << fake_cuda::kCountNames[size_t(none)] << "\n"
                                           << run.sites;
  }
  RecordProperty("step", to_text(run.steps[kSettled]));
  std::printf("%-24s %s\n", GetParam().name, to_text(run.steps[kSettled]).c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Steps, Budget,
    ::testing::Values(
        Case{"Plain", {"pipeline.copy=true"}},
        Case{"Convolutions", {"pipeline.copy=true", "model.name=resnet18", "model.width=0.125"}},
        Case{"Bf16", {"pipeline.copy=true", "precision.mode=bf16"}},
        Case{"ScaledHalf", {"pipeline.copy=true", "precision.mode=fp16"}},
        Case{"Masters", {"pipeline.copy=true", "precision.mode=bf16-o2"}},
        Case{"Accumulated", {"pipeline.copy=true", "train.accumulate=2", "train.clip_norm=1"}},
        Case{"Averaged", {"pipeline.copy=true", "train.ema=0.9"}},
        Case{"Adamw", {"pipeline.copy=true", "optimizer.name=adamw"}},
        Case{"Lamb", {"pipeline.copy=true", "optimizer.name=lamb"}},
        Case{"RmsProp", {"pipeline.copy=true", "optimizer.name=rmsprop"}},
        Case{"Muon", {"pipeline.copy=true", "optimizer.name=muon"}},
        Case{"Checkpointed",
             {"pipeline.copy=true", "model.name=resnet18", "model.width=0.125",
              "train.checkpoint_segments=2"}},
        Case{
            "Dropout",
            {"pipeline.copy=true", "model.name=vit_tiny", "model.width=0.25", "model.dropout=0.1"}},
        Case{"HeldImages", {"pipeline.copy=true", "data.cache=device"}},
        Case{"Effects", {"pipeline.copy=true", "augment.rotate=20", "augment.brightness=0.3"}},
        Case{"WholePipeline", {"pipeline.copy=true", "pipeline.augment=true", "augment.rotate=20"}},
        Case{"Volumes",
             {"pipeline.copy=true", "data.source=synth-volume:count=200,size=8", "augment.size=0",
              "model.name=unet3d", "model.width=0.125", "augment.rotate=10",
              "augment.contrast=0.3"}},
        Case{"LoadersPixels", {"pipeline.copy=true", "augment.device=cpu"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

// The most bytes that a run takes from the driver.
int64_t peak_of(const std::vector<std::string>& settings, const std::string& out) {
  std::vector<std::string> all = {
      "data.source=synth:size=64,count=512", "augment.size=64",     "train.batch=64",
      "model.name=resnet18_cifar",           "precision.mode=fp32", "pipeline.copy=false"};
  all.insert(all.end(), settings.begin(), settings.end());
  const int64_t before = live_bytes();
  fake_cuda::control()->begin_peak();
  const HostRun run = run_on_host(host_recipe(all), out);
  EXPECT_EQ(run.result.steps, 8);
  return of(counts_now(), Count::kPeakBytes) - before;
}

using MemoryBudget = OnFakeCuda;

TEST_F(MemoryBudget, EqualsTheEagerStepsMemory) {
  const auto told = [](const char* name, int64_t bytes) {
    std::printf("%-24s %.0f MiB\n", name, double(bytes) / (1 << 20));
    return double(bytes);
  };
  const double plain = told("Plain, memory", peak_of({}, dir / "plain"));
  EXPECT_GT(plain, double(1 << 30)) << "too little for this test";
  const Case cases[] = {{"copied beside", {"pipeline.copy=true"}},
                        {"finished beside", {"pipeline.copy=true", "pipeline.augment=true"}},
                        {"accumulated", {"train.accumulate=2"}},
                        {"graph", {"train.graph=auto"}},
                        {"graph, copied beside", {"train.graph=auto", "pipeline.copy=true"}}};
  for (const Case& of : cases)
    EXPECT_LE(told(of.name, peak_of(of.settings, dir / of.name)), 1.05 * plain) << of.name;
}

Recipe automatic_recipe(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"train.batch=auto", "model.classes=10", "precision.mode=fp32"};
  all.insert(all.end(), settings.begin(), settings.end());
  return host_recipe(all);
}

TEST_F(MemoryBudget, OfABatchSearchLeavesAGibibyteToOthersThanTorch) {
  const int64_t before = live_bytes();
  fake_cuda::control()->begin_peak();
  const Recipe recipe = automatic_recipe(
      {"model.name=vit_tiny", "model.width=0.34", "augment.size=64", "data.prefetch=1"});
  EXPECT_LT(find_micro_batch(Env::posix(), recipe, kGpu, 1 << 20), 1 << 20);
  const int64_t taken = of(counts_now(), Count::kPeakBytes) - before;
  EXPECT_LE(taken, int64_t{7} << 30);
  EXPECT_GT(taken, int64_t{6} << 30);
}

// torch takes the next power of two.
TEST_F(MemoryBudget, OfTheLoadersCountsPinnedMemoryAsItIsTaken) {
  const Recipe recipe =
      automatic_recipe({"model.name=mlp", "model.width=0.01", "data.prefetch=1024"});
  const int64_t most = find_micro_batch(Env::posix(), recipe, kGpu, int64_t{1} << 30);
  const auto taken = [](int64_t images) {
    return 1025 * int64_t(std::bit_ceil(uint64_t(images) * 16 * 16 * 3 * sizeof(float)));
  };
  const int64_t capacity = tensor_memory(at::kCPU).capacity();
  EXPECT_LE(taken(most), capacity);
  EXPECT_GT(taken(most + 1), capacity) << "nothing else is the limit";
}

// A program limits its memory through torch, and then trains.
TEST_F(MemoryBudget, LeavesTheLimitOfTheProgram) {
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  TensorMemory& memory = tensor_memory(kGpu);
  allocator->setMemoryFraction(0.5, 0);
  {
    const saturate::MemoryBudget narrow(memory, int64_t{1} << 30);
    EXPECT_LT(allocator->getMemoryFraction(0), 0.5);
    const saturate::MemoryBudget wide(memory, int64_t{1} << 50);
    EXPECT_NEAR(allocator->getMemoryFraction(0), 0.5, 1e-6);
  }
  EXPECT_EQ(memory.budget(), 0);
  EXPECT_NEAR(allocator->getMemoryFraction(0), 0.5, 1e-6);
  allocator->setMemoryFraction(1, 0);
}

int64_t pinned_allocations(int64_t bytes) {
  const Counts before = counts_now();
  at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return of(counts_now() - before, Count::kPinnedAllocations);
}

TEST_F(MemoryBudget, ReleasedMemoryIncludesPinnedMemory) {
  constexpr int64_t kBytes = int64_t{3} << 20;
  pinned_allocations(kBytes);
  EXPECT_EQ(pinned_allocations(kBytes), 0) << "the same block again";
  tensor_memory(kGpu).release_cache();
  EXPECT_EQ(pinned_allocations(kBytes), 1);
}

TEST_F(MemoryBudget, PlainMemoryReplacesPinnedMemoryOnlyIfThatHasRunOut) {
  constexpr int64_t kBytes = int64_t{96} << 20;
  tensor_memory(kGpu).release_cache();
  fake_cuda::control()->fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  EXPECT_FALSE(host_bytes(kBytes).is_pinned());
  fake_cuda::control()->fail("cudaHostAlloc", 1, cudaErrorLaunchFailure);
  EXPECT_THROW(host_bytes(kBytes), c10::Error);
}

class GraphBudget : public OnFakeCuda {
 protected:
  // A step whose graph is recorded costs one launch of it, and the rate's or the inputs' copies.
  void expect_launches(const char* name, const std::vector<std::string>& more) {
    fake_cuda::control()->watch(Count::kLaunches);
    std::vector<std::string> settings = {"train.graph=auto", "data.cache=device",
                                         "schedule.name=constant"};
    settings.insert(settings.end(), more.begin(), more.end());
    const HostRun run = run_on_host(host_recipe(settings), dir / name);
    EXPECT_EQ(run.result.graph, "17 of 20 steps replayed");
    for (const Counts& step : run.steps) EXPECT_EQ(of(step, Count::kCapturedPageable), 0);
    for (size_t i = kSettled; i < kSteadyEnd; ++i) {
      SCOPED_TRACE("step " + std::to_string(i + 1) + ": " + to_text(run.steps[i]));
      EXPECT_EQ(of(run.steps[i], Count::kGraphLaunches), 1);
      EXPECT_LE(of(run.steps[i], Count::kGraphLaunches) + of(run.steps[i], Count::kLaunches), 2)
          << run.sites;
      for (const Count none : {Count::kWaits, Count::kPageableCopies, Count::kDeviceAllocations,
                               Count::kPinnedAllocations, Count::kStrays})
        EXPECT_EQ(of(run.steps[i], none), 0) << fake_cuda::kCountNames[size_t(none)] << "\n"
                                             << run.sites;
    }
    std::printf("%-24s %s\n", name, to_text(run.steps[kSettled]).c_str());
  }
};

TEST_F(GraphBudget, ACapturedStepOfAnMlpIsTwoLaunches) {
  expect_launches("Graph", {});
}

TEST_F(GraphBudget, ACapturedStepOfAConvolutionalNetIsTwoLaunches) {
  const std::vector<std::string> net = {"model.name=resnet18", "model.width=0.125"};
  expect_launches("Graph, convolutions", net);
  std::vector<std::string> half = net;
  half.insert(half.end(), {"precision.mode=bf16", "augment.rotate=20", "train.clip_norm=1"});
  expect_launches("Graph, bf16, effects", half);
}

}  // namespace
}  // namespace saturate::testing
