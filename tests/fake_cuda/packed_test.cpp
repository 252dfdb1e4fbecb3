// The cost of packed JPEGs in a step on a GPU: one launch, none without effects, one small copy,
// and no wait.
#include "saturate/feed.h"
#include "tests/fake_cuda/host_testing.h"
#include "tests/fake_cuda/stream_watch.h"
#include "tests/packed_testing.h"

namespace saturate::testing {
namespace {

class PackedBudget : public OnFakeCuda {
 protected:
  // 20 steps in four epochs.
  HostRun run(const std::string& name, const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"data.source=" + shard_, "train.batch=4",
                                    "train.epochs=4",        "train.drop_last=true",
                                    "augment.size=96",       "augment.crop=random_resized",
                                    "data.decode=fast",      "augment.rotate=20"};
    all.insert(all.end(), settings.begin(), settings.end());
    return run_on_host(host_recipe(all), dir / name);
  }
  void SetUp() override {
    OnFakeCuda::SetUp();
    if (IsSkipped()) return;
    mixed_shard(dir);
    shard_ = "shard:" + (dir / "mixed.shard");
  }
  std::string shard_;
};

int64_t sum_of(const HostRun& run, Count count) {
  int64_t sum = 0;
  for (const Counts& step : run.steps) sum += of(step, count);
  return sum;
}

// Summed over the run, since a pipeline copies some batches one step earlier or later.
TEST_F(PackedBudget, ABatchHasOneLaunchAndOneCopyMore) {
  for (const char* copy : {"pipeline.copy=true", "pipeline.copy=false"}) {
    SCOPED_TRACE(copy);
    const HostRun cpu = run("cpu", {copy, "data.decode_device=cpu"});
    const HostRun gpu = run("gpu", {copy, "data.decode_device=cuda"});
    ASSERT_EQ(cpu.result.steps, kHostSteps);
    ASSERT_EQ(gpu.result.steps, kHostSteps);
    EXPECT_EQ(cpu.result.decoding, "");
    EXPECT_TRUE(gpu.result.decoding.starts_with("the GPU decoded ")) << gpu.result.decoding;
    const auto more = [&](Count count) { return sum_of(gpu, count) - sum_of(cpu, count); };
    EXPECT_GT(more(Count::kTwins), 0) << "no batch has packed samples";
    EXPECT_EQ(more(Count::kLaunches), more(Count::kTwins));
    EXPECT_LE(more(Count::kTwins), kHostSteps);
    EXPECT_EQ(more(Count::kPinnedCopies), more(Count::kTwins));
    for (const Count none :
         {Count::kWaits, Count::kPageableCopies, Count::kDeviceCopies, Count::kFills})
      EXPECT_LE(more(none), 0) << fake_cuda::kCountNames[size_t(none)] << "\n" << gpu.sites;
    std::printf("%-24s %s\n", "PackedJpegs", to_text(gpu.steps[kSettled + 3]).c_str());
  }
}

// One kernel makes the batch from the crops' parts, in either layout, and no batch of bytes exists.
// With effects there are two of them: as decoded, and a spare one.
TEST_F(PackedBudget, WithoutEffectsABatchIsOneLaunch) {
  const auto data = open_dataset(env(), shard_);
  const LoaderOptions options = packing_options(true);
  const auto batches = int64_t((data->size() + options.batch - 1) / options.batch);
  const at::Device gpu(at::kCUDA, 0);
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  AugmentOptions augment;
  augment.size = 96;
  augment.crop = CropKind::kRandomResized;
  int64_t bytes = 0;
  const auto counts_of_epoch = [&](double rotate, bool channels_last) {
    augment.rotate = rotate;
    Loader loader(*data, options, augment, batch_allocator(gpu));
    Ledger ledger(env());
    Feeder feeder(loader, gpu, channels_last, ledger, augment);
    feeder.start_epoch(0);
    const auto allocated = [&] {
      return allocator->getDeviceStats(0).allocated_bytes[0].allocated;
    };
    bytes = -allocated();
    const Counts before = counts_now();
    for (DeviceBatch batch; feeder.next(batch);) continue;
    bytes += allocated();
    return counts_now() - before;
  };
  const Counts two = counts_of_epoch(20, true);
  const int64_t two_bytes = bytes;
  EXPECT_EQ(of(two, Count::kTwins), 2 * batches) << to_text(two);
  for (const bool channels_last : {true, false}) {
    const Counts one = counts_of_epoch(0, channels_last);
    EXPECT_EQ(of(one, Count::kTwins), batches) << to_text(one);
    EXPECT_EQ(of(one, Count::kLaunches), batches) << to_text(one);
    EXPECT_EQ(of(one, Count::kPinnedCopies) + of(one, Count::kPageableCopies),
              of(two, Count::kPinnedCopies) + of(two, Count::kPageableCopies));
    EXPECT_GE(two_bytes - bytes, 2 * int64_t(data->size()) * 96 * 96 * 3);
  }
}

// Without a pipeline, where the batches in flight do not depend on the loader's speed; at an
// epoch's ends other work may allocate.
TEST_F(PackedBudget, ASettledStepAllocatesNothing) {
  for (const char* effects : {"augment.rotate=20", "augment.rotate=0"}) {
    const HostRun gpu = run(effects, {"pipeline.copy=false", "data.decode_device=cuda", effects});
    ASSERT_EQ(gpu.result.steps, kHostSteps);
    constexpr size_t kStepsOfEpoch = 5;
    for (size_t i = kSettled; i < kSteadyEnd; ++i) {
      if (i % kStepsOfEpoch == 0 || (i + 1) % kStepsOfEpoch == 0) continue;
      EXPECT_EQ(of(gpu.steps[i], Count::kDeviceAllocations), 0) << effects << ", step " << i + 1;
    }
  }
}

// Also in a captured step, and with every stage on its own stream.
TEST_F(PackedBudget, StreamsAreUsedCorrectly) {
  const std::vector<std::vector<std::string>> cases = {
      {"pipeline.copy=false"},
      {"pipeline.copy=true", "debug.checks=streams"},
      {"pipeline.copy=true", "pipeline.augment=true", "debug.checks=streams"},
      {"pipeline.copy=true", "train.graph=auto"},
      {"augment.rotate=0", "pipeline.copy=true", "debug.checks=streams"},
      {"augment.rotate=0", "pipeline.copy=true", "pipeline.augment=true", "debug.checks=streams"},
      {"augment.rotate=0", "pipeline.copy=true", "train.graph=auto"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> settings = cases[i];
    settings.push_back("data.decode_device=cuda");
    StreamWatch watch;
    const HostRun found = run("run" + std::to_string(i), settings);
    EXPECT_EQ(found.result.steps, kHostSteps);
    for (const std::string& finding : watch.take_findings())
      ADD_FAILURE() << cases[i].front() << " " << cases[i].back() << ": " << finding;
  }
}

}  // namespace
}  // namespace saturate::testing
