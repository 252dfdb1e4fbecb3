#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

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

LoaderOptions small_options() {
  LoaderOptions options;
  options.batch = 7;
  options.threads = 2;
  options.prefetch = 3;
  options.seed = 11;
  return options;
}

MemoryDataset small_dataset(size_t count = 45) {
  std::vector<std::string> files;
  for (size_t i = 0; i < count; ++i)
    files.push_back(testing::noise_jpeg(9 + int(i % 11), 9 + int(i % 5), i));
  return MemoryDataset(std::move(files));
}

// A hash of a batch: pixels, labels and indices.
uint64_t fingerprint(const Batch& batch) {
  const size_t image = size_t(batch.size.area()) * 3 * (batch.type == PixelType::kFloat32 ? 4 : 1);
  uint64_t hash = testing::hash_bytes({batch.pixels.get(), batch.count() * image});
  for (const BatchSample& sample : batch.samples) {
    hash = testing::hash_bytes(std::as_bytes(std::span(&sample.label, 1)), hash);
    hash = testing::hash_bytes(std::as_bytes(std::span(&sample.index, 1)), hash);
  }
  return hash;
}

std::vector<uint64_t> run_epoch(Loader& loader, uint32_t epoch, size_t first_batch = 0) {
  std::vector<uint64_t> prints;
  loader.start_epoch(epoch, first_batch);
  for (Batch batch; loader.next(batch);) prints.push_back(fingerprint(batch));
  return prints;
}

TEST(EpochOrder, IsAPermutationPerSeedAndEpoch) {
  for (size_t size : {0u, 1u, 2u, 1000u}) {
    auto order = epoch_order(size, 1, 2, {});
    EXPECT_EQ(order, epoch_order(size, 1, 2, {}));
    std::vector<uint32_t> identity(size);
    std::iota(identity.begin(), identity.end(), 0u);
    EXPECT_EQ(epoch_order(size, 1, 2, {ShuffleMode::kNone}), identity);
    if (size == 1000) {
      EXPECT_NE(order, epoch_order(size, 1, 3, {}));
      EXPECT_NE(order, epoch_order(size, 2, 2, {}));
      EXPECT_NE(order, identity);
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, identity);
  }
}

TEST(EpochOrder, DrawsEveryPermutationEquallyOften) {
  std::map<std::vector<uint32_t>, int> counts;
  constexpr int kDraws = 24'000;
  for (uint32_t epoch = 0; epoch < kDraws; ++epoch) ++counts[epoch_order(4, 5, epoch, {})];
  ASSERT_EQ(counts.size(), 24u);
  double chi = 0;
  for (const auto& [order, count] : counts) chi += (count - 1000.0) * (count - 1000.0) / 1000;
  EXPECT_LT(chi, 49.7);  // 23 degrees of freedom, p = 0.001
}

TEST(Loader, ReturnsTheSameBatchesForAnyThreadsAndPrefetch) {
  const MemoryDataset dataset = small_dataset();
  std::vector<uint64_t> expected;
  for (int threads : {1, 2, 4, 8})
    for (int prefetch : {1, 2, 3, 8}) {
      LoaderOptions options = small_options();
      options.threads = threads;
      options.prefetch = prefetch;
      Loader loader(dataset, options, small_augment());
      auto prints = run_epoch(loader, 0);
      const auto second = run_epoch(loader, 1);
      ASSERT_EQ(prints.size(), 7u);
      EXPECT_NE(prints, second);
      prints.insert(prints.end(), second.begin(), second.end());
      if (expected.empty()) expected = prints;
      EXPECT_EQ(prints, expected) << threads << " threads, prefetch " << prefetch;
    }
}

// The oracle: each sample decoded and augmented alone, on this thread.
TEST(Loader, PixelsAreThoseOfEachSampleAlone) {
  const MemoryDataset dataset = small_dataset();
  const AugmentOptions augment = small_augment();
  for (PixelType type : {PixelType::kUint8, PixelType::kFloat32})
    for (bool train : {true, false}) {
      LoaderOptions options = small_options();
      options.type = type;
      options.train = train;
      Loader loader(dataset, options, augment);
      loader.start_epoch(4);
      Decoder decoder;
      Resizer resizer;
      Sample sample;
      Image image;
      const size_t values = 8 * 8 * 3;
      std::vector<uint8_t> bytes(values);
      std::vector<float> floats(values);
      size_t batches = 0;
      for (Batch batch; loader.next(batch); ++batches) {
        EXPECT_EQ(batch.size, 8);
        ASSERT_EQ(batch.type, type);
        for (size_t i = 0; i < batch.count(); ++i) {
          dataset.read(batch.samples[i].index, sample);
          decoder.decode(sample.bytes, "x", image);
          RandomStream random(11, 4, batch.samples[i].index, RandomUse::kAugment);
          const auto transform = train ? draw_transform(augment, random, image.width, image.height)
                                       : eval_transform(augment, image.width, image.height);
          apply_transform(augment, transform, image, resizer, bytes.data());
          normalize_pixels(make_normalize(augment), bytes, floats.data());
          const auto expected = type == PixelType::kUint8 ? std::as_bytes(std::span(bytes))
                                                          : std::as_bytes(std::span(floats));
          ASSERT_EQ(batch.samples[i].label, sample.label);
          ASSERT_EQ(std::memcmp(batch.pixels.get() + i * expected.size(), expected.data(),
                                expected.size()),
                    0);
        }
      }
      EXPECT_EQ(batches, 7u);
    }
}

TEST(Loader, PlanarBatchesHaveTheSamePixels) {
  const MemoryDataset dataset = small_dataset();
  for (DecodeMode decode : {DecodeMode::kExact, DecodeMode::kFast}) {
    LoaderOptions options = small_options();
    options.decode = decode;
    Loader interleaved(dataset, options, small_augment());
    options.output = BatchOutput::kPlanar;
    Loader planar(dataset, options, small_augment());
    interleaved.start_epoch(2);
    planar.start_epoch(2);
    Batch expected, found;
    for (int batch = 0; batch < 7; ++batch) {
      ASSERT_TRUE(interleaved.next(expected));
      ASSERT_TRUE(planar.next(found));
      EXPECT_EQ(found.output, BatchOutput::kPlanar);
      EXPECT_EQ(expected.output, BatchOutput::kInterleaved);
      ASSERT_EQ(found.count(), expected.count());
      const auto* in = reinterpret_cast<const float*>(expected.pixels.get());
      const auto* out = reinterpret_cast<const float*>(found.pixels.get());
      for (size_t i = 0; i < found.count() * 64; ++i)
        for (size_t c = 0; c < 3; ++c)
          ASSERT_EQ(out[i / 64 * 192 + c * 64 + i % 64], in[i * 3 + c]) << i;
    }
  }
}

TEST(Loader, ReturnsEachSampleOnce) {
  const MemoryDataset dataset = small_dataset(45);
  for (bool drop_last : {false, true}) {
    LoaderOptions options = small_options();
    options.drop_last = drop_last;
    Loader loader(dataset, options, small_augment());
    EXPECT_EQ(loader.batches(), drop_last ? 6u : 7u);
    loader.start_epoch(0);
    std::multiset<uint32_t> seen;
    std::vector<uint32_t> in_order;
    for (Batch batch; loader.next(batch);) {
      EXPECT_EQ(batch.count(), seen.size() == 42 ? 3u : 7u);
      for (const BatchSample& sample : batch.samples) {
        seen.insert(sample.index);
        in_order.push_back(sample.index);
        EXPECT_EQ(sample.name, "") << "names were not requested";
      }
    }
    EXPECT_EQ(seen.size(), drop_last ? 42u : 45u);
    EXPECT_EQ(std::set<uint32_t>(seen.begin(), seen.end()).size(), seen.size());
    auto order = epoch_order(45, 11, 0, {});
    order.resize(in_order.size());
    EXPECT_EQ(in_order, order);
    Batch batch;
    EXPECT_FALSE(loader.next(batch));
    EXPECT_EQ(batch.count(), 0u);
  }
}

TEST(Loader, ResumesAtAnyBatch) {
  const MemoryDataset dataset = small_dataset();
  Loader loader(dataset, small_options(), small_augment());
  const auto whole = run_epoch(loader, 3);
  ASSERT_EQ(whole.size(), 7u);
  for (size_t first = 0; first <= 8; ++first) {
    const auto rest = run_epoch(loader, 3, first);
    EXPECT_EQ(rest, std::vector<uint64_t>(whole.begin() + ptrdiff_t(std::min(first, whole.size())),
                                          whole.end()));
  }
}

TEST(Loader, StopsAndRestartsMidEpoch) {
  const MemoryDataset dataset = small_dataset();
  Loader loader(dataset, small_options(), small_augment());
  const auto whole = run_epoch(loader, 0);
  ASSERT_EQ(whole.size(), 7u);
  for (size_t taken = 0; taken < 4; ++taken) {
    loader.start_epoch(9);
    Batch batch;
    for (size_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next(batch));
    if (taken % 2) loader.stop();
    if (taken == 3) {
      EXPECT_FALSE(loader.next(batch));
      EXPECT_EQ(loader.ready(), 0u);
    }
    EXPECT_EQ(run_epoch(loader, 0), whole);
  }
}

TEST(Loader, CanBeDestroyedWhileBusyBlockedOrIdle) {
  const MemoryDataset dataset = small_dataset();
  Batch kept;
  uint64_t before = 0;
  for (int taken : {0, 1, 3}) {
    for (int round = 0; round < 10; ++round) {
      Loader loader(dataset, small_options(), small_augment());
      loader.start_epoch(uint32_t(round));
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader.next(kept));
      if (taken) before = fingerprint(kept);
    }
    if (taken > 0) {
      EXPECT_EQ(fingerprint(kept), before) << "a batch outlives its loader";
    }
  }
  Loader(dataset, small_options(), small_augment());
}

TEST(Loader, RecyclesItsBuffers) {
  const MemoryDataset dataset = small_dataset();
  std::atomic<int> allocated{0}, freed{0};
  Batch kept;
  {
    LoaderOptions options = small_options();
    Loader loader(dataset, options, small_augment(), [&](size_t bytes) {
      EXPECT_EQ(bytes, size_t{7} * 8 * 8 * 3 * 4);
      ++allocated;
      return std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(64, bytes)),
                                        [&](std::byte* memory) {
                                          ++freed;
                                          std::free(memory);
                                        });
    });
    for (uint32_t epoch = 0; epoch < 4; ++epoch) run_epoch(loader, epoch);
    EXPECT_EQ(allocated, options.prefetch + 1);  // those in flight, and the one returned
    EXPECT_EQ(freed, 0);
    loader.start_epoch(0);
    loader.next(kept);
  }
  EXPECT_EQ(freed, allocated - 1);
  kept.pixels.reset();
  EXPECT_EQ(freed, allocated.load());
}

// Counts its reads.
class ReadsDataset : public MemoryDataset {
 public:
  explicit ReadsDataset(size_t count)
      : MemoryDataset(std::vector<std::string>(count, testing::noise_jpeg(8, 8, 0))) {}
  void read(size_t index, Sample& out) const override {
    ++reads_;
    MemoryDataset::read(index, out);
  }
  size_t reads() const { return reads_; }

 private:
  mutable std::atomic<size_t> reads_{0};
};

TEST(Loader, KeepsAtMostPrefetchBatchesInFlight) {
  const ReadsDataset dataset(70);
  LoaderOptions options = small_options();
  options.threads = 4;
  Loader loader(dataset, options, small_augment());
  loader.start_epoch(0);
  while (loader.ready() < 3) std::this_thread::yield();
  EXPECT_EQ(loader.ready(), 3u);
  EXPECT_EQ(dataset.reads(), 21u);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(loader.ready(), 2u) << "new batches are started once half of them are taken";
  ASSERT_TRUE(loader.next(batch));
  while (loader.ready() < 3) std::this_thread::yield();
  EXPECT_EQ(dataset.reads(), 35u);
}

// Reads its first sample only after so many others have been read.
class OneSlowSample : public MemoryDataset {
 public:
  OneSlowSample(size_t count, size_t others)
      : MemoryDataset(std::vector<std::string>(count, testing::noise_jpeg(8, 8, 0))),
        others_(others) {}
  void read(size_t index, Sample& out) const override {
    std::unique_lock lock(mutex_);
    if (index == 0)
      changed_.wait(lock, [&] { return reads_ >= others_; });
    else
      ++reads_;
    changed_.notify_all();
    lock.unlock();
    MemoryDataset::read(index, out);
  }

 private:
  const size_t others_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable size_t reads_ = 0;  // guarded by mutex_
};

// In 4 batches of 7, the slow sample's own claim has at most 7 samples.
TEST(Loader, ASlowSampleDelaysNoOtherClaim) {
  const OneSlowSample dataset(28, 21);
  LoaderOptions options = small_options();
  options.threads = 2;
  options.prefetch = 4;
  options.shuffle.mode = ShuffleMode::kNone;
  Loader loader(dataset, options, small_augment());
  for (uint32_t epoch = 0; epoch < 3; ++epoch) {
    loader.start_epoch(epoch);
    size_t batches = 0;
    for (Batch batch; loader.next(batch);) ++batches;
    EXPECT_EQ(batches, 4u);
  }
}

TEST(Loader, RefusesOptionsOutOfRange) {
  const MemoryDataset dataset = small_dataset(1);
  const auto kind = [&](auto change) {
    LoaderOptions options = small_options();
    AugmentOptions augment = small_augment();
    change(options, augment);
    return error_of([&] { Loader(dataset, options, augment); }).kind();
  };
  EXPECT_EQ(kind([](auto& o, auto&) { o.batch = 0; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto& o, auto&) { o.threads = 0; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto& o, auto&) { o.prefetch = 0; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto&, auto& a) { a.size = 0; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto&, auto& a) {
              a.size_changes = {{0, 16}, {5, 224}};
            }),
            ErrorKind::kUsage)
      << "larger than a batch has room for";
  EXPECT_EQ(kind([](auto&, auto& a) {
              a.size_changes = {{0, 8}, {5, 9}};
            }),
            ErrorKind::kUsage)
      << "does not end with the size";
  EXPECT_EQ(kind([](auto& o, auto&) { o.shard = {.rank = 1}; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto& o, auto&) { o.shard = {.rank = 0, .world = 0}; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto&, auto& a) { a.std = {}; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto&, auto& a) { a.policy_ops = 9; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](auto& o, auto&) { o.output = BatchOutput::kPlaces; }), ErrorKind::kUsage)
      << "without cached samples";
  EXPECT_EQ(kind([](auto& o, auto&) {
              o.output = BatchOutput::kPlanar;
              o.type = PixelType::kUint8;
            }),
            ErrorKind::kUsage);
}

}  // namespace
}  // namespace saturate
