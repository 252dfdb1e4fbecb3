// Between two epochs a loader's source that is far away fetches the first samples of the next one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "data/export.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::StoreServer;
using testing::TempDir;
using testing::wait_for;

constexpr size_t kEpochSamples = 60;

class StoreEpochs : public ::testing::Test {
 protected:
  StoreEpochs() {
    testing::write_folder_dataset(folder / "images", int(kEpochSamples));
    PackOptions options;
    options.out = "shard:" + (folder / "a.shard");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), options);
    server.put("/a.shard", testing::read_text(folder / "a.shard"));
    local = open_dataset(env(), options.out);
    for (size_t i = 0; i < local->size(); ++i) all_bytes += local->bytes(i);
    StoreTuning tuning = quick_tuning();
    tuning.ahead_bytes = all_bytes / 2;
    tuning.merged_gap = 0;
    tuning.merged_bytes = 0;        // a request for each sample
    tuning.second_least_s = 1'000;  // no second requests
    store = std::make_shared<ObjectStore>(env(), StoreOptions(), tuning);
    StoreEnv with_store(env(), store);
    far = open_dataset(with_store, "shard:" + server.url("/a.shard"));
    opening = server.asks().size();
  }

  static LoaderOptions options(uint32_t epochs, ShuffleMode shuffle = ShuffleMode::kFull) {
    LoaderOptions options;
    options.batch = 8;
    options.threads = 3;
    options.prefetch = 2;
    options.shuffle = {shuffle, 4};
    options.type = PixelType::kUint8;
    options.epochs = epochs;
    return options;
  }
  static AugmentOptions augment() {
    AugmentOptions augment;
    augment.size = 8;
    augment.crop = CropKind::kRandomResized;
    return augment;
  }
  // The rest of an epoch.
  static std::string rest_of(Loader& loader) {
    std::string all;
    for (Batch batch; loader.next(batch);) {
      for (const BatchSample& sample : batch.samples)
        all += std::to_string(sample.index) + ":" + std::to_string(sample.label) + " ";
      all += testing::to_text({batch.pixels.get(), batch.count() * 8 * 8 * 3});
    }
    return all;
  }
  // How often each range was asked for since the shard was opened.
  std::map<uint64_t, int> asked() const {
    std::map<uint64_t, int> counts;
    const auto asks = server.asks();
    for (size_t i = opening; i < asks.size(); ++i) ++counts[asks[i].first];
    return counts;
  }
  size_t requests() const { return server.asks().size() - opening; }
  // Until what was announced has come, at least that many requests.
  bool fetched(size_t least) {
    return wait_for([&] { return requests() >= least; });
  }

  TempDir folder;
  StoreServer server;
  std::unique_ptr<Dataset> local, far;
  std::shared_ptr<ObjectStore> store;
  uint64_t all_bytes = 0;
  size_t opening = 0;
};

TEST_F(StoreEpochs, TheNextEpochIsFetchedWhileNothingReads) {
  for (const ShuffleMode shuffle : {ShuffleMode::kFull, ShuffleMode::kBlock, ShuffleMode::kNone}) {
    opening = server.asks().size();
    Loader here(*local, options(3, shuffle), augment());
    Loader there(*far, options(3, shuffle), augment());
    for (uint32_t epoch = 0; epoch < 3; ++epoch) {
      here.start_epoch(epoch);
      there.start_epoch(epoch);
      EXPECT_EQ(rest_of(there), rest_of(here)) << int(shuffle) << " " << epoch;
      there.stop();
      // A quarter of the samples, in bytes: half of the budget.
      const size_t before = (epoch + 1) * kEpochSamples;
      if (epoch == 2) continue;
      EXPECT_TRUE(fetched(before + kEpochSamples / 6)) << int(shuffle) << " " << epoch;
      EXPECT_LE(requests(), before + kEpochSamples / 3);
    }
    EXPECT_EQ(requests(), 3 * kEpochSamples) << "nothing of a fourth epoch";
    for (const auto& [first, count] : asked()) EXPECT_EQ(count, 3) << first;
  }
}

TEST_F(StoreEpochs, RanksFetchOnlyTheirOwnSamples) {
  LoaderOptions mine = options(2);
  mine.shard = {1, 2, Uneven::kJoin};
  mine.drop_last = true;
  Loader here(*local, mine, augment()), there(*far, mine, augment());
  size_t samples = 0;
  for (uint32_t epoch = 0; epoch < 2; ++epoch) {
    here.start_epoch(epoch);
    there.start_epoch(epoch);
    EXPECT_EQ(rest_of(there), rest_of(here));
    samples += kEpochSamples / 8 * 4;
    if (epoch == 0) {
      EXPECT_TRUE(fetched(samples + 4));
    }
  }
  EXPECT_EQ(requests(), samples);
}

// By default, in evaluation, and where the run ends.
TEST_F(StoreEpochs, NothingIsFetchedAfterTheLastEpoch) {
  LoaderOptions evaluation = options(2);
  evaluation.train = false;
  for (const LoaderOptions& loading : {options(0), options(1), evaluation}) {
    opening = server.asks().size();
    Loader loader(*far, loading, augment());
    loader.start_epoch(0);
    rest_of(loader);
    loader.stop();
    std::vector<std::byte> out(600);
    store->read(store->open(server.url("/a.shard")), 600, out);  // after all that was announced
    EXPECT_EQ(requests(), kEpochSamples + 2);
  }
}

TEST_F(StoreEpochs, AnotherEpochOrPlaceWithdrawsWhatWasFetched) {
  {
    Loader here(*local, options(9), augment()), there(*far, options(9), augment());
    for (const auto& [epoch, first] : {std::pair(0u, 0u), {0u, 0u}, {1u, 3u}, {5u, 0u}}) {
      const size_t end = requests() + kEpochSamples - 8 * first;
      here.start_epoch(epoch, first);
      there.start_epoch(epoch, first);
      EXPECT_EQ(rest_of(there), rest_of(here)) << epoch << " " << first;
      EXPECT_TRUE(fetched(end - kEpochSamples / 3));
    }
  }
  // As the budget is free again, samples are fetched ahead.
  testing::expect_withdrawn(*far, options(9), augment(), 20, server, "/a.shard", kEpochSamples - 1);
}

// Epoch 1 ends before its last two batches, when samples of epoch 2 may be announced already.
TEST_F(StoreEpochs, FailuresAndAnEarlyEndChangeNoSample) {
  server.tamper([](const HttpAsk& ask, testing::HttpAnswer& answer) {
    if (ask.number % 3 == 0) answer = {503, {}, ""};
  });
  Loader here(*local, options(3), augment()), there(*far, options(3), augment());
  for (uint32_t epoch = 0; epoch < 3; ++epoch) {
    here.start_epoch(epoch);
    there.start_epoch(epoch);
    Batch a, b;
    for (int i = 0; epoch == 1 && i < 6; ++i) {
      ASSERT_TRUE(here.next(a) && there.next(b));
      EXPECT_EQ(testing::all_of(a, &BatchSample::index), testing::all_of(b, &BatchSample::index));
    }
    if (epoch != 1) {
      EXPECT_EQ(rest_of(there), rest_of(here)) << epoch;
    }
    there.stop();
  }
  EXPECT_GT(store->counts().retries, 10u);
}

// As a trial that rests while another is measured.
TEST_F(StoreEpochs, AStoppedEpochLeavesTheBudgetToOthers) {
  server.put("/b.shard", testing::read_text(folder / "a.shard"));
  StoreEnv with_store(env(), store);
  const auto other = open_dataset(with_store, "shard:" + server.url("/b.shard"));
  const auto asked_of_other = [&] {
    const auto asks = server.asks();
    return size_t(
        std::ranges::count_if(asks, [](const HttpAsk& ask) { return ask.path == "/b.shard"; }));
  };
  const size_t before = asked_of_other();
  LoaderOptions few_in_flight = options(0);
  few_in_flight.batch = 4;
  few_in_flight.prefetch = 1;
  Loader loader(*far, few_in_flight, augment());
  loader.start_epoch(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  loader.stop();
  constexpr size_t kOthers = kEpochSamples / 3;  // two thirds of the budget
  for (size_t i = 0; i < kOthers; ++i) other->advise(ReadAdvice::kSoon, i, 1);
  EXPECT_TRUE(wait_for([&] { return asked_of_other() >= before + kOthers; }));
}

TEST_F(StoreEpochs, ReadAheadMbIsTheBudget) {
  DataOptions data;
  data.store.read_ahead_mb = 3;
  EXPECT_EQ(open_input(env(), "shard:" + server.url("/a.shard"), data)->look_ahead(), 3u << 20);
  data.store.read_ahead_mb = StoreOptions().read_ahead_mb;
  EXPECT_EQ(open_input(env(), "shard:" + server.url("/a.shard"), data)->look_ahead(),
            StoreTuning().ahead_bytes);
}

}  // namespace
}  // namespace saturate
