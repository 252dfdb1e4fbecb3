// data.shuffle = "block": the order, its quality, and read-ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "data/in_order.h"
#include "data/read_ahead.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

const ShuffleOptions kBlocks{ShuffleMode::kBlock, 16};

// The position of each sample.
std::vector<size_t> places(const std::vector<uint32_t>& order) {
  std::vector<size_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  return place;
}

TEST(BlockOrder, IsAPermutationThatDependsOnlyOnSeedAndEpoch) {
  for (const size_t size : {0u, 1u, 15u, 16u, 17u, 128u, 1000u}) {
    auto order = epoch_order(size, 1, 2, kBlocks);
    EXPECT_EQ(order, epoch_order(size, 1, 2, kBlocks));
    if (size == 1000) {
      EXPECT_NE(order, epoch_order(size, 1, 3, kBlocks));
      EXPECT_NE(order, epoch_order(size, 2, 2, kBlocks));
      EXPECT_NE(order, epoch_order(size, 1, 2, {ShuffleMode::kBlock, 32}));
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST(BlockOrder, SamplesOfABlockAreWithinOneWindow) {
  constexpr size_t kSize = 1000;
  const auto place = places(epoch_order(kSize, 3, 0, kBlocks));
  const auto blocks = epoch_blocks(kSize, 3, 0, 16);
  ASSERT_EQ(blocks.size(), 63u);
  size_t begin = 0;
  for (size_t i = 0; i < blocks.size(); i += kShuffleWindow) {
    size_t end = begin;
    for (size_t k = i; k < std::min(i + kShuffleWindow, blocks.size()); ++k)
      end += std::min<size_t>(16, kSize - blocks[k] * 16);
    for (size_t k = i; k < std::min(i + kShuffleWindow, blocks.size()); ++k) {
      for (size_t s = blocks[k] * 16; s < std::min<size_t>(kSize, (blocks[k] + 1) * 16); ++s) {
        EXPECT_GE(place[s], begin);
        EXPECT_LT(place[s], end);
      }
    }
    begin = end;
  }
  EXPECT_EQ(begin, kSize);
}

// The quality that docs/data.md promises.
TEST(BlockOrder, PositionsAreUniformAndNeighboursAThirdOfAWindowApart) {
  constexpr size_t kSize = 1024, kWindow = 16 * kShuffleWindow;
  constexpr int kEpochs = 4000;
  int counts[8] = {};
  double apart = 0;
  for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto place = places(epoch_order(kSize, 9, epoch, kBlocks));
    ++counts[place[37] * 8 / kSize];
    apart += std::abs(double(place[37]) - double(place[38])) / kEpochs;
  }
  double chi = 0;
  for (const int count : counts) chi += std::pow(count - kEpochs / 8.0, 2) / (kEpochs / 8.0);
  EXPECT_LT(chi, 24.3);  // 7 degrees of freedom, p = 0.001
  // The distance of two uniform positions of n: mean (n + 1) / 3, deviation n / sqrt(18).
  EXPECT_NEAR(apart, (kWindow + 1) / 3.0, 4 * kWindow / std::sqrt(18.0 * kEpochs));
}

class NotingDataset : public testing::MemoryDataset {
 public:
  using MemoryDataset::MemoryDataset;
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    EXPECT_EQ(advice, ReadAdvice::kSoon);
    std::lock_guard lock(mutex);
    noted.emplace_back(first, count);
  }
  mutable std::mutex mutex;
  mutable std::vector<std::pair<size_t, size_t>> noted;  // guarded by mutex
};

std::vector<std::string> files(size_t count) {
  std::vector<std::string> made;
  for (size_t i = 0; i < count; ++i) made.push_back(testing::noise_jpeg(8, 8, i));
  return made;
}

TEST(ReadAhead, NamesEveryBlockOnceInTheOrderOfTheEpoch) {
  const NotingDataset data(files(150));
  LoaderOptions options;
  options.batch = 10;
  options.shuffle = {ShuffleMode::kBlock, 4};
  options.seed = 5;
  AugmentOptions augment;
  augment.size = 8;
  const auto blocks = epoch_blocks(150, 5, 1, 4);
  for (const size_t first_batch : {0u, 9u}) {
    data.noted.clear();
    {
      Loader loader(data, options, augment);
      loader.start_epoch(1, first_batch);
      size_t seen = 0;
      for (Batch batch; loader.next(batch);) {
        const auto order = epoch_order(150, 5, 1, options.shuffle);
        for (const BatchSample& sample : batch.samples)
          EXPECT_EQ(sample.index, order[first_batch * 10 + seen++]);
      }
      EXPECT_EQ(seen, 150 - first_batch * 10);
      for (int i = 0; i < 60'000; ++i) {  // a separate thread gives the hints
        std::lock_guard lock(data.mutex);
        if (!data.noted.empty() && data.noted.back().first == blocks.back() * 4) break;
        Env::posix().sleep_ns(1'000'000);
      }
    }
    size_t block = first_batch * 10 / 4 / kShuffleWindow * kShuffleWindow;
    for (const auto& [first, count] : data.noted) {
      ASSERT_LT(block, blocks.size());
      EXPECT_EQ(first, blocks[block] * 4);
      EXPECT_EQ(count, std::min<size_t>(4, 150 - first));
      ++block;
    }
    EXPECT_EQ(block, blocks.size());
  }
}

TEST(ReadAhead, ReadsAtMostAWindowAhead) {
  const NotingDataset data(files(400));
  const auto order = epoch_order(400, 5, 0, {ShuffleMode::kBlock, 2});
  {
    ReadAhead ahead(data, {ShuffleMode::kBlock, 2}, 5, 1, false);
    ahead.start(0, 0, order, 0, order.size());
    ahead.advance(7, 7);  // in the fourth block
    const auto noted = [&] {
      std::lock_guard lock(data.mutex);
      return data.noted.size();
    };
    for (int i = 0; i < 60'000 && noted() < 3 + 2 * kShuffleWindow; ++i)
      Env::posix().sleep_ns(1'000'000);
  }
  EXPECT_EQ(data.noted.size(), 3 + 2 * kShuffleWindow);
  data.noted.clear();
  for (const bool idle : {false, true}) {
    ReadAhead none(data, {idle ? ShuffleMode::kBlock : ShuffleMode::kFull, 2}, 5, 1, idle);
    none.start(0, 0, order, 0, order.size());
    none.advance(100, 100);
  }
  EXPECT_TRUE(data.noted.empty());
}

// Samples of 10 bytes that want to be announced, 35 bytes at a time.
class FarDataset : public testing::MemoryDataset {
 public:
  FarDataset() : MemoryDataset(std::vector<std::string>(10)) {}
  uint64_t bytes(size_t) const override { return 10; }
  uint64_t look_ahead() const override { return 35; }
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    EXPECT_EQ(count, 1u);
    (advice == ReadAdvice::kSoon     ? soon
     : advice == ReadAdvice::kLater  ? later
     : advice == ReadAdvice::kToDisk ? for_disk
                                     : withdrawn)
        .push_back(uint32_t(first));
    if (advice == ReadAdvice::kSoon) next_uses.push_back(advice.next_use);
  }
  mutable std::vector<uint32_t> soon, later, for_disk, withdrawn;
  mutable std::vector<uint64_t> next_uses;
};

TEST(ReadAhead, AnnouncesSamplesOfAFarSourceInTheirOrder) {
  using Indices = std::vector<uint32_t>;
  const Indices order{5, 3, 8, 1, 9, 2, 0, 4};
  const FarDataset data;
  {
    ReadAhead ahead(data, {}, 5, 2, false);
    ahead.start(0, 0, order, 1, 7);
    EXPECT_EQ(data.soon, (Indices{3, 8, 1})) << "those within the budget";
    EXPECT_EQ(data.for_disk, (Indices{})) << "nothing delays the first batch";
    ahead.advance(0, 2);
    EXPECT_EQ(data.soon, (Indices{3, 8, 1, 9}));
    EXPECT_EQ(data.for_disk, (Indices{2, 0})) << "the rest";
    ahead.advance(0, 3);
    EXPECT_EQ(data.soon, (Indices{3, 8, 1, 9, 2}));
    ahead.start(1, 0, order, 3, 7);
    EXPECT_EQ(data.withdrawn, (Indices{1, 9, 2, 0}));
    EXPECT_EQ(data.soon, (Indices{3, 8, 1, 9, 2, 1, 9, 2}));
    EXPECT_EQ(data.for_disk, (Indices{2, 0, 0}));
    ahead.advance(0, 7);
    EXPECT_EQ(data.soon.size(), 8u) << "all that was announced is delivered, and more";
    EXPECT_EQ(data.withdrawn.size(), 4u);
  }
  EXPECT_EQ(data.withdrawn.size(), 4u);
  // Samples that the threads may read before the next call are announced, whatever the budget.
  data.soon.clear();
  {
    ReadAhead ahead(data, {}, 5, 5, false);
    ahead.start(0, 0, order, 0, 8);
    EXPECT_EQ(data.soon, (Indices{5, 3, 8, 1, 9}));
  }
  EXPECT_EQ(data.withdrawn.size(), 9u);
}

// Some with each call, until all are 60,000; the bytes of these are bounded by the cache alone.
TEST(ReadAhead, AnnouncesMoreOfAFarSourceForTheDisk) {
  std::vector<uint32_t> order(70'000);
  std::iota(order.begin(), order.end(), 0u);
  const FarDataset data;
  ReadAhead ahead(data, {}, 5, 2, false);
  ahead.start(0, 0, order, 0, order.size());
  for (size_t delivered = 1; delivered < 300; ++delivered) {
    ahead.advance(0, delivered);
    const size_t end = std::min(4 + 258 * delivered, delivered + kMostAnnounced);
    ASSERT_EQ(data.soon.size(), delivered + 3);
    ASSERT_EQ(data.for_disk.size(), end - 4) << "once each";
    ASSERT_EQ(data.for_disk.back(), end - 1);
  }
  // Also if more are delivered at a time than are announced.
  std::vector<uint32_t> longer(10'000);
  std::iota(longer.begin(), longer.end(), 0u);
  const FarDataset large;
  ReadAhead fast(large, {}, 5, 1'000, false);
  fast.start(0, 0, longer, 0, longer.size());
  for (size_t delivered = 500; delivered < 3'000; delivered += 500) fast.advance(0, delivered);
  EXPECT_EQ(large.for_disk.back(), 1'500u + 5 * 1'256 - 1) << "beyond the 1,000 that may be read";
}

// Half of its budget is room for 100,000 samples of 10 bytes.
class RoomiestDataset : public FarDataset {
 public:
  size_t size() const override { return 100'000; }
  uint64_t look_ahead() const override { return 2'000'000; }
};

// A source takes memory for each, beside its bytes.
TEST(ReadAhead, AnnouncesALimitedNumberOfSmallSamples) {
  std::vector<uint32_t> order(100'000);
  std::iota(order.begin(), order.end(), 0u);
  const RoomiestDataset data;
  const LaterEpochs epochs{2, [&](uint32_t) { return order; }};
  ReadAhead ahead(data, {}, 5, 2, false, nullptr, nullptr, epochs);
  ahead.start(0, 0, order, 0, order.size());
  EXPECT_EQ(data.soon.size(), kMostAnnounced);
  ahead.advance(0, 50'000);
  EXPECT_EQ(data.soon.size(), order.size());
  EXPECT_EQ(data.later.size(), kMostAnnounced - 50'000);
  InOrder in_order(data);
  data.soon.clear();
  in_order.before(0);
  EXPECT_EQ(data.soon.size(), kMostAnnounced);
}

// Two samples of 10 bytes fit into half of 45.
class RoomierDataset : public FarDataset {
 public:
  uint64_t look_ahead() const override { return 45; }
};

TEST(ReadAhead, AnnouncesTheFirstSamplesOfTheNextEpochForLater) {
  using Indices = std::vector<uint32_t>;
  const std::vector<Indices> orders{{0, 1, 2, 3, 4, 5}, {5, 6, 7, 8}, {1, 2, 3}};
  const RoomierDataset data;
  const LaterEpochs epochs{3, [&](uint32_t epoch) { return orders.at(epoch); }};
  {
    ReadAhead ahead(data, {}, 5, 1, false, nullptr, nullptr, epochs);
    const auto start = [&](uint32_t epoch, size_t first) {
      ahead.start(epoch, 0, orders[epoch], first, orders[epoch].size());
    };
    start(0, 0);
    ahead.advance(0, 4);
    EXPECT_EQ(data.soon, (Indices{0, 1, 2, 3, 4, 5}));
    EXPECT_TRUE(data.later.empty()) << "sample 5 is still read in this epoch";
    ahead.advance(0, 6);
    EXPECT_EQ(data.later, (Indices{5, 6})) << "half of the budget";
    data.soon.clear();
    start(1, 0);
    EXPECT_EQ(data.soon, (Indices{5, 6, 7, 8})) << "they are soon now";
    EXPECT_TRUE(data.withdrawn.empty());
    ahead.advance(0, 3);
    EXPECT_EQ(data.later, (Indices{5, 6, 1, 2})) << "beside the last one of this epoch";
    data.later.clear();
    start(1, 3);
    EXPECT_EQ(data.withdrawn, (Indices{8, 1, 2}));
    EXPECT_EQ(data.later, (Indices{1, 2}));
    data.withdrawn.clear();
    ahead.advance(0, 4);
    start(2, 1);
    EXPECT_EQ(data.withdrawn, (Indices{1, 2})) << "not from the epoch's start on";
    data.later.clear();
    ahead.advance(0, 3);
    EXPECT_TRUE(data.later.empty()) << "there are three epochs";
    start(0, 0);
    ahead.advance(0, 6);
    data.withdrawn.clear();
  }
  EXPECT_EQ(data.withdrawn, (Indices{5, 6}));
}

TEST(ReadAhead, TellsInWhichEpochThisMachineReadsASampleAgain) {
  const FarDataset data;
  LoaderOptions options;
  options.batch = 6;
  options.shard = {3, 4, Uneven::kJoin, 2, 2};  // the second of two machines with two ranks each
  const auto order_of = [&](int rank, uint32_t epoch) {
    return rank_order(epoch_order(10, 5, epoch, {}), 6, {rank, 4, Uneven::kJoin});
  };
  ReadAhead ahead(data, {}, 5, 10, false, &options);
  for (const uint32_t epoch : {0, 1, 2, 7, 8}) {  // as after resuming, and one after the other
    data.next_uses.clear();
    const auto order = order_of(3, epoch);
    ahead.start(epoch, 0, order, 0, order.size());
    std::vector<uint64_t> expected;
    for (const uint32_t sample : order) {
      uint32_t next = epoch + 1;
      while (next < epoch + 9 && std::ranges::count(order_of(2, next), sample) == 0 &&
             std::ranges::count(order_of(3, next), sample) == 0)
        ++next;
      expected.push_back(next);
    }
    EXPECT_EQ(data.next_uses, expected) << epoch;
  }
  for (const int local : {0, 4}) {  // unknown; alone
    data.next_uses.clear();
    options.shard.first_local = 0;
    options.shard.local_size = local;
    ReadAhead plain(data, {}, 5, 10, false, &options);
    plain.start(0, 0, order_of(3, 0), 0, 2);
    EXPECT_EQ(data.next_uses, std::vector<uint64_t>(2, ReadAdvice::kUnknown));
  }
}

}  // namespace
}  // namespace saturate
