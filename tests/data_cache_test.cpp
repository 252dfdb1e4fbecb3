// Samples cached in memory: the same samples, read once, within a budget.
#include <gtest/gtest.h>

#include <atomic>

#include "base/thread_pool.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

class CountingDataset : public testing::MemoryDataset {
 public:
  using MemoryDataset::MemoryDataset;
  void read(size_t index, Sample& out) const override {
    ++reads;
    MemoryDataset::read(index, out);
  }
  mutable std::atomic<int> reads{0};
};

// A cache that owns its source.
struct Cached {
  const CountingDataset* source;
  std::unique_ptr<Dataset> data;
  Cached(std::vector<std::string> files, const CacheOptions& options) {
    auto made = std::make_unique<CountingDataset>(std::move(files));
    source = made.get();
    data = cache_dataset(std::move(made), options);
  }
};

constexpr size_t kCount = 40;

std::vector<std::string> files() {
  std::vector<std::string> made;
  for (size_t i = 0; i < kCount; ++i)
    made.push_back(testing::noise_jpeg(12 + int(i % 9), 10 + int(i % 7), i));
  return made;
}

std::vector<uint64_t> batch_hashes(const Dataset& data, int threads, int epochs) {
  LoaderOptions options;
  options.batch = 7;
  options.threads = threads;
  options.seed = 4;
  options.names = true;
  AugmentOptions augment;
  augment.size = 9;
  augment.crop = CropKind::kRandomResized;
  Loader loader(data, options, augment);
  std::vector<uint64_t> hashes;
  for (uint32_t epoch = 0; epoch < uint32_t(epochs); ++epoch) {
    loader.start_epoch(epoch);
    for (Batch batch; loader.next(batch);) {
      uint64_t hash =
          testing::hash_bytes({batch.pixels.get(), batch.count() * 9 * 9 * 3 * sizeof(float)});
      for (const BatchSample& sample : batch.samples) {
        hash = testing::hash_bytes(std::as_bytes(std::span(&sample.label, 1)), hash);
        hash = testing::hash_bytes(std::as_bytes(std::span(sample.name)), hash);
      }
      hashes.push_back(hash);
    }
  }
  return hashes;
}

constexpr CacheForm kForms[] = {CacheForm::kEncoded, CacheForm::kDecoded};

TEST(Cache, ReturnsTheSameBatchesAndReadsEachSampleOnce) {
  const auto expected = batch_hashes(testing::MemoryDataset(files()), 1, 3);
  for (const CacheForm form : kForms) {
    for (const int threads : {1, 3}) {
      const Cached cached(files(), {CacheMode::kRam, form, 1});
      EXPECT_EQ(batch_hashes(*cached.data, threads, 3), expected) << int(form);
      EXPECT_EQ(cached.source->reads, int(kCount)) << int(form);
      EXPECT_GT(cached_bytes(), 0u);
    }
    EXPECT_EQ(cached_bytes(), 0u) << "a destroyed cache frees its memory";
  }
}

TEST(Cache, SamplesBeyondTheBudgetAreReadEachTime) {
  const auto expected = batch_hashes(testing::MemoryDataset(files()), 1, 3);
  for (const CacheForm form : kForms) {
    const Cached cached(files(), {CacheMode::kRam, form, 15e-6});
    EXPECT_EQ(batch_hashes(*cached.data, 2, 3), expected);
    EXPECT_LE(cached_bytes(), 15'000u);
    EXPECT_GT(cached_bytes(), 5'000u);
    EXPECT_GT(cached.source->reads, int(kCount));
    EXPECT_LT(cached.source->reads, 3 * int(kCount));
  }
}

TEST(Cache, ABudgetAboveTheMemorySizeCachesEverything) {
  const Cached cached(files(), {CacheMode::kRam, CacheForm::kEncoded, 1e12});
  Sample sample;
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < kCount; ++i) cached.data->read(i, sample);
  EXPECT_EQ(cached.source->reads, int(kCount));
}

TEST(Cache, TheBudgetIsSharedByAllCaches) {
  const Cached first(files(), {CacheMode::kRam, CacheForm::kEncoded, 15e-6});
  const Cached second(files(), {CacheMode::kRam, CacheForm::kEncoded, 15e-6});
  Sample sample;
  for (size_t i = 0; i < kCount; ++i) first.data->read(i, sample);
  for (size_t i = 0; i < kCount; ++i) second.data->read(i, sample);
  EXPECT_LE(cached_bytes(), 15'000u);
}

TEST(Cache, ReadReturnsCachedPixelsWithoutACopy) {
  const Cached cached(files(), {CacheMode::kRam, CacheForm::kDecoded, 1});
  const testing::MemoryDataset plain(files());
  Decoder decoder;
  Sample sample, file;
  Image expected, image;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < kCount; ++i) {
      plain.read(i, file);
      decode_sample(decoder, file, expected);
      sample = {};
      cached.data->read(i, sample);
      EXPECT_EQ(sample.encoding, pass == 0 ? SampleEncoding::kEncoded : SampleEncoding::kRaw);
      EXPECT_EQ(sample.label, file.label);
      decode_sample(decoder, sample, image);
      EXPECT_EQ(image.pixels, expected.pixels);
      const DecodedSample* kept = cached.data->decoded(i);
      ASSERT_NE(kept, nullptr);
      EXPECT_EQ(kept->image.pixels, expected.pixels);
      EXPECT_EQ(cached.data->decoded(i), kept) << "it does not move";
    }
  }
}

TEST(Cache, ABrokenSampleFailsEachTimeAndIsNotCached) {
  auto broken = files();
  broken[3] = "no picture";
  for (const CacheForm form : kForms) {
    const Cached cached(broken, {CacheMode::kRam, form, 1});
    LoaderOptions options;
    options.batch = 7;
    options.on_error = OnError::kSkip;
    AugmentOptions augment;
    augment.size = 9;
    Loader loader(*cached.data, options, augment);
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
      size_t images = 0;
      loader.start_epoch(epoch);
      for (Batch batch; loader.next(batch);) images += batch.count();
      EXPECT_EQ(images, kCount - 1);
    }
    ASSERT_EQ(loader.skipped_count(), 1u);
    EXPECT_EQ(loader.skipped()[0].name, "memory:3");
  }
}

// Many threads ask for the same samples at once: all get the same copy.
TEST(Cache, ThreadsShareTheFirstCopy) {
  for (const CacheForm form : kForms) {
    const Cached cached(files(), {CacheMode::kRam, form, 1});
    std::vector<const DecodedSample*> seen(8 * kCount);
    parallel_for(8, 8, [&](size_t thread) {
      Sample sample;
      for (size_t i = 0; i < kCount; ++i) {
        if (form == CacheForm::kEncoded) cached.data->read(i, sample);
        seen[thread * kCount + i] = cached.data->decoded(i);
      }
    });
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i % kCount]);
    EXPECT_EQ(seen[0] == nullptr, form == CacheForm::kEncoded);
  }
  EXPECT_EQ(cached_bytes(), 0u);
}

TEST(Cache, OpenInputCachesAsTheRecipeSays) {
  const TempDir dir;
  testing::write_folder_dataset(dir / "set", 20);
  FaultEnv env(Env::posix());
  DataOptions options;
  options.cache = {CacheMode::kRam, CacheForm::kEncoded, 0};
  for (const CacheMode mode : {CacheMode::kNone, CacheMode::kRam}) {
    options.cache.mode = mode;
    const auto data = open_input(env, "folder:" + (dir / "set"), options);
    Sample sample;
    const auto reads = [&] { return env.count({FileOp::kRead, "set"}); };
    for (size_t i = 0; i < 20; ++i) data->read(i, sample);
    const uint64_t before = reads();
    for (size_t i = 0; i < 20; ++i) data->read(i, sample);
    EXPECT_EQ(reads() - before, mode == CacheMode::kNone ? 20u : 0u);
  }
}

}  // namespace
}  // namespace saturate
