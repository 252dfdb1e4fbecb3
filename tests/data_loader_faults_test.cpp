// The loader with broken samples, failing storage and reads of uneven duration.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;
using testing::TempDir;

AugmentOptions small_augment() {
  AugmentOptions augment;
  augment.size = 8;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

LoaderOptions small_options(OnError on_error, int threads) {
  LoaderOptions options;
  options.batch = 5;
  options.threads = threads;
  options.prefetch = 3;
  options.seed = 2;
  options.on_error = on_error;
  options.type = PixelType::kUint8;
  return options;
}

constexpr size_t kImage = 8 * 8 * 3;  // bytes

// 40 samples, of which these are broken: text, empty, truncated, and noise after the signature.
constexpr uint32_t kBroken[] = {3, 17, 18, 29};

bool is_broken(uint32_t index) {
  return std::find(std::begin(kBroken), std::end(kBroken), index) != std::end(kBroken);
}

MemoryDataset broken_dataset(bool repaired) {
  std::vector<std::string> files;
  for (size_t i = 0; i < 40; ++i) files.push_back(testing::noise_jpeg(16, 12, i));
  if (repaired) return MemoryDataset(std::move(files));
  files[3] = "this is no picture";
  files[17].clear();
  files[18].resize(files[18].size() / 2);
  files[29].resize(3);
  return MemoryDataset(std::move(files));
}

TEST(LoaderFaults, FailureNamesTheFirstBrokenSampleInOrder) {
  const MemoryDataset dataset = broken_dataset(false);
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    const auto order = epoch_order(40, 2, epoch, {});
    const auto first = std::find_if(order.begin(), order.end(), is_broken);
    const std::string expected = "memory:" + std::to_string(*first);
    for (int threads : {1, 2, 8}) {
      Loader loader(dataset, small_options(OnError::kFail, threads), small_augment());
      loader.start_epoch(epoch);
      Batch batch;
      for (ptrdiff_t i = 0; i < (first - order.begin()) / 5; ++i) ASSERT_TRUE(loader.next(batch));
      for (int again = 0; again < 2; ++again) {
        const Error error = error_of([&] { loader.next(batch); });
        EXPECT_EQ(error.kind(), ErrorKind::kData);
        EXPECT_EQ(error.where(), expected) << error.what();
      }
      EXPECT_EQ(loader.skipped_count(), 0u);
      loader.stop();
      EXPECT_FALSE(loader.next(batch));
    }
  }
}

// With skipping, the batches are those of a dataset without the broken samples.
TEST(LoaderFaults, SkipRemovesExactlyTheBrokenSamples) {
  const MemoryDataset dataset = broken_dataset(false), repaired = broken_dataset(true);
  for (int threads : {1, 2, 8}) {
    Loader loader(dataset, small_options(OnError::kSkip, threads), small_augment());
    Loader whole(repaired, small_options(OnError::kFail, 1), small_augment());
    loader.start_epoch(1);
    whole.start_epoch(1);
    Batch batch, full;
    while (whole.next(full)) {
      ASSERT_TRUE(loader.next(batch));
      size_t kept = 0;
      for (size_t i = 0; i < full.count(); ++i) {
        if (is_broken(full.samples[i].index)) continue;
        ASSERT_LT(kept, batch.count());
        EXPECT_EQ(batch.samples[kept].index, full.samples[i].index);
        EXPECT_EQ(batch.samples[kept].label, full.samples[i].label);
        EXPECT_EQ(
            std::memcmp(batch.pixels.get() + kept * kImage, full.pixels.get() + i * kImage, kImage),
            0);
        ++kept;
      }
      EXPECT_EQ(batch.count(), kept);
    }
    EXPECT_FALSE(loader.next(batch));
    EXPECT_EQ(loader.skipped_count(), 4u);
    std::vector<std::string> names, expected;
    for (const auto& skipped : loader.skipped()) {
      names.push_back(skipped.name);
      EXPECT_FALSE(skipped.reason.empty());
    }
    for (uint32_t index : epoch_order(40, 2, 1, {}))
      if (is_broken(index)) expected.push_back("memory:" + std::to_string(index));
    EXPECT_EQ(names, expected) << "in the epoch's order";
    loader.start_epoch(2);
    while (loader.next(batch)) continue;
    EXPECT_EQ(loader.skipped_count(), 4u) << "each is counted once, not once per epoch";
  }
}

TEST(LoaderFaults, ABatchWithoutSamplesIsSkipped) {
  std::vector<std::string> files(20, "broken");
  for (size_t i = 10; i < 15; ++i) files[i] = testing::noise_jpeg(8, 8, i);
  const MemoryDataset dataset(files);
  LoaderOptions options = small_options(OnError::kSkip, 2);
  options.shuffle.mode = ShuffleMode::kNone;
  Loader loader(dataset, options, small_augment());
  loader.start_epoch(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(testing::all_of(batch, &BatchSample::index),
            (std::vector<uint32_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(batch.place, 2u) << "its index in the epoch, as for start_epoch()";
  EXPECT_FALSE(loader.next(batch));
  EXPECT_EQ(loader.skipped_count(), 15u);
}

TEST(LoaderFaults, AtMostAHundredSkippedNamesAreKept) {
  const MemoryDataset dataset(std::vector<std::string>(130, "broken"));
  Loader loader(dataset, small_options(OnError::kSkip, 2), small_augment());
  loader.start_epoch(0);
  Batch batch;
  EXPECT_FALSE(loader.next(batch));
  EXPECT_EQ(loader.skipped_count(), 130u);
  EXPECT_EQ(loader.skipped().size(), 100u);
}

// Only bad data may be skipped: lack of memory is not the sample's fault.
TEST(LoaderFaults, SkippingDoesNotHideLackOfMemory) {
  class Failing : public MemoryDataset {
   public:
    using MemoryDataset::MemoryDataset;
    void read(size_t, Sample&) const override { throw std::bad_alloc(); }
  };
  const Failing dataset(std::vector<std::string>(10));
  Loader loader(dataset, small_options(OnError::kSkip, 2), small_augment());
  loader.start_epoch(0);
  Batch batch;
  EXPECT_THROW(loader.next(batch), std::bad_alloc);
}

std::vector<uint64_t> run_epoch(Loader& loader, uint32_t epoch) {
  std::vector<uint64_t> prints;
  loader.start_epoch(epoch);
  for (Batch batch; loader.next(batch);)
    prints.push_back(testing::hash_bytes({batch.pixels.get(), batch.count() * kImage}));
  return prints;
}

TEST(LoaderFaults, DelayedReadsDoNotChangeTheOrder) {
  const TempDir dir;
  testing::write_folder_dataset(dir.path(), 60);
  FaultEnv env(Env::posix());
  const auto dataset = open_dataset(env, "folder:" + dir.path());
  Loader reference(*dataset, small_options(OnError::kFail, 1), small_augment());
  const auto expected = run_epoch(reference, 0);
  ASSERT_EQ(expected.size(), 12u);
  env.delay({FileOp::kRead, ""}, 0, 2'000'000);
  env.delay({FileOp::kRead, "00013"}, 20'000'000, 20'000'000);
  for (int threads : {2, 4, 8}) {
    Loader loader(*dataset, small_options(OnError::kFail, threads), small_augment());
    EXPECT_EQ(run_epoch(loader, 0), expected) << threads << " threads";
  }
}

TEST(LoaderFaults, AReadErrorEndsTheEpochAndTheNextOneRuns) {
  const TempDir dir;
  testing::write_folder_dataset(dir.path(), 60);
  FaultEnv env(Env::posix());
  const auto dataset = open_dataset(env, "folder:" + dir.path());
  Loader loader(*dataset, small_options(OnError::kFail, 3), small_augment());
  const auto expected = run_epoch(loader, 0);
  env.inject({.match = {FileOp::kRead, "00025.jpg"}, .error = EIO});
  const Error error = error_of([&] { run_epoch(loader, 0); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.where().find("00025.jpg"), std::string::npos);
  EXPECT_NE(error.reason().find("Input/output error"), std::string::npos);
  env.clear();
  EXPECT_EQ(run_epoch(loader, 0), expected);
}

// A network file system that is away would lose thousands of samples.
TEST(LoaderFaults, AFailureOfTheStorageIsNotSkipped) {
  const TempDir dir;
  testing::write_folder_dataset(dir.path(), 60);
  FaultEnv env(Env::posix());
  const auto dataset = open_dataset(env, "folder:" + dir.path());
  Loader loader(*dataset, small_options(OnError::kSkip, 3), small_augment());
  const FaultMatch one{FileOp::kRead, "00025.jpg"};
  env.inject({.match = one, .error = ESTALE});
  EXPECT_EQ(error_of([&] { run_epoch(loader, 0); }).kind(), ErrorKind::kRun);
  env.clear();
  env.inject({.match = one, .error = EIO});
  EXPECT_EQ(run_epoch(loader, 0).size(), 12u) << "a bad sector is skipped";
}

// Each read of a store that is away takes as long as data.timeout_s.
TEST(LoaderFaults, NoSampleAfterAFailedOneIsRead) {
  class FailingDataset : public MemoryDataset {
   public:
    FailingDataset()
        : MemoryDataset(std::vector<std::string>(400, testing::noise_jpeg(16, 12, 1))) {}
    void read(size_t index, Sample& out) const override {
      ++reads;
      if (fails) fail(ErrorKind::kRun, "no answer", "store", "Check it");
      MemoryDataset::read(index, out);
    }
    mutable std::atomic<int> reads{0};
    std::atomic<bool> fails{true};
  };
  for (const int threads : {1, 2, 8}) {
    FailingDataset dataset;
    LoaderOptions options = small_options(OnError::kSkip, threads);
    options.batch = 64;
    Loader loader(dataset, options, small_augment());
    loader.start_epoch(0);
    Batch batch;
    EXPECT_EQ(error_of([&] { loader.next(batch); }).kind(), ErrorKind::kRun);
    loader.stop();
    EXPECT_LE(dataset.reads, threads);
    dataset.fails = false;
    EXPECT_EQ(run_epoch(loader, 0).size(), 7u) << "a later epoch reads again";
  }
}

TEST(LoaderFaults, AFailedAllocationIsAnErrorAndNotTheEnd) {
  const MemoryDataset dataset = broken_dataset(true);
  int left = 2;
  Loader loader(dataset, small_options(OnError::kFail, 2), small_augment(), [&](size_t bytes) {
    if (left-- <= 0) throw std::bad_alloc();
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  });
  EXPECT_THROW(loader.start_epoch(0), std::bad_alloc);
  Batch batch;
  EXPECT_THROW(loader.next(batch), std::bad_alloc);
  left = 100;
  EXPECT_EQ(run_epoch(loader, 0).size(), 8u);
}

}  // namespace
}  // namespace saturate
