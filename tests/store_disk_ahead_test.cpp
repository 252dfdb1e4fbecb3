// Ranges for which no memory is left are fetched into the cache on disk: after all others, once,
// and within its budget.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "data/export.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/store_env.h"
#include "tests/ahead_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::noise_text;
using testing::quick_tuning;
using testing::TempDir;
using testing::wait_for;

class StoreDiskAhead : public testing::AheadTest {
 protected:
  std::shared_ptr<ObjectStore> store(double gb = 1, uint64_t ahead_bytes = 1'500) {
    StoreTuning tuning = quick_tuning();
    tuning.ahead_requests = 1;
    tuning.ahead_bytes = ahead_bytes;
    tuning.merged_gap = 0;
    tuning.merged_bytes = 0;        // a request for each range
    tuning.second_least_s = 1'000;  // no second requests
    StoreOptions options{folder / "cache", gb, 0};
    return std::make_shared<ObjectStore>(env(), options, tuning);
  }
  void break_server() {
    server.tamper([](const HttpAsk&, HttpAnswer& answer) { answer = {503, {}, "away"}; });
  }
  void expect_read(ObjectStore& from, const ObjectStore::ObjectPtr& object, uint64_t offset) {
    EXPECT_EQ(read_range(from, object, offset, 1'000), text.substr(offset, 1'000));
  }
  // Puts a shard of images on the server as /a.shard, and opens it here.
  std::unique_ptr<Dataset> local_shard(int images) {
    testing::write_folder_dataset(folder / "images", images);
    PackOptions pack;
    pack.out = "shard:" + (folder / "a.shard");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), pack);
    server.put("/a.shard", testing::read_text(folder / "a.shard"));
    return open_dataset(env(), pack.out);
  }
  static LoaderOptions loader_options(int threads) {
    LoaderOptions options;
    options.batch = kBatch;
    options.threads = threads;
    options.type = PixelType::kUint8;
    return options;
  }
  static AugmentOptions augment() {
    AugmentOptions augment;
    augment.size = 8;
    return augment;
  }
  static uint64_t bytes_of(const Dataset& data) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < data.size(); ++i) bytes += data.bytes(i);
    return bytes;
  }

  static constexpr int kBatch = 4;
  TempDir folder;
};

TEST_F(StoreDiskAhead, RangesAreFetchedWhenMemoryIsFullAndReadFromTheDisk) {
  const auto far = store();
  const auto object = far->open(server.url("/a"));
  hold(90'000);
  far->announce(object, 90'000, 1'000);
  ASSERT_TRUE(asked(1));
  for (const uint64_t offset : {20'000, 50'000})
    far->announce(object, offset, 1'000, ReadAdvice::kToDisk);
  far->announce(object, 120'000, 1'000);  // does not fit into memory too
  release = true;
  ASSERT_TRUE(asked(3));
  EXPECT_EQ(order(), (std::vector<uint64_t>{90'000, 20'000, 50'000}));
  expect_read(*far, object, 90'000);
  ASSERT_TRUE(asked(4));
  expect_read(*far, object, 120'000);
  break_server();
  far->announce(object, 20'000, 1'000);  // it is there
  for (const uint64_t offset : {20'000, 50'000}) expect_read(*far, object, offset);
  EXPECT_EQ(order(), (std::vector<uint64_t>{90'000, 20'000, 50'000, 120'000}));
  far->flush();
  EXPECT_EQ(far->counts().disk_hits, 0u) << "they were fetched in this epoch";
  expect_read(*far, object, 50'000);
  EXPECT_EQ(far->counts().disk_hits, 1u);
}

TEST_F(StoreDiskAhead, ARangeThatIsNeededMeanwhileIsFetchedOnce) {
  for (const bool is_announced : {true, false}) {
    const uint64_t offset = is_announced ? 20'000 : 50'000, other = offset + 100'000;
    release = false;
    hold(offset);
    const auto far = store();
    const auto object = far->open(server.url("/a"));
    const size_t before = order().size();
    far->announce(object, offset, 1'000, ReadAdvice::kToDisk);
    ASSERT_TRUE(asked(before + 1));
    if (is_announced) far->announce(object, offset, 1'000);
    std::thread reader([&] { expect_read(*far, object, offset); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it most probably waits then
    release = true;
    reader.join();
    far->flush();
    expect_read(*far, object, offset);
    EXPECT_EQ(order().size(), before + 1);
    // All memory is free again.
    far->announce(object, other, 1'000);
    EXPECT_TRUE(asked(before + 2));
    expect_read(*far, object, other);
  }
}

TEST_F(StoreDiskAhead, NothingIsFetchedThatHasNoRoom) {
  const auto full = store(5e-6);  // a block is 4,096 bytes; the folder takes one
  const auto object = full->open(server.url("/a"));
  full->announce(object, 20'000, 1'000, ReadAdvice::kToDisk);
  full->announce(object, 90'000, 1'000);
  ASSERT_TRUE(asked(1));
  expect_read(*full, object, 90'000);
  ObjectStore without(env(), {}, quick_tuning());
  const auto other = without.open(server.url("/a"));
  without.announce(other, 20'000, 1'000, ReadAdvice::kToDisk);
  expect_read(without, other, 50'000);
  EXPECT_EQ(order(), (std::vector<uint64_t>{90'000, 50'000}));
}

// A cache of old data counts as room, since it is evicted; and requests for the disk end, so that
// others follow.
TEST_F(StoreDiskAhead, ManyRangesAreFetchedInAFullCacheOfOldData) {
  server.put("/old", noise_text(100'000));
  {
    const auto old = store(1e-4);
    const auto object = old->open(server.url("/old"));
    for (uint64_t i = 1; i < 20; ++i) {
      std::vector<std::byte> out(1'000);
      old->read(object, 5'000 * i, out);
      old->flush();
    }
  }
  const auto far = store(1e-4);
  const auto object = far->open(server.url("/a"));
  const size_t before = order().size();
  for (uint64_t i = 1; i <= 12; ++i) far->announce(object, 10'000 * i, 1'000, ReadAdvice::kToDisk);
  ASSERT_TRUE(asked(before + 1));
  for (uint64_t i = 1; i <= 12; ++i) expect_read(*far, object, 10'000 * i);
  EXPECT_EQ(order().size(), before + 12);
}

// Another process may have put it there.
TEST_F(StoreDiskAhead, WhatIsOnTheDiskMeanwhileIsNotFetched) {
  const auto far = store(), other = store();
  const auto object = far->open(server.url("/a")), same = other->open(server.url("/a"));
  hold(90'000);
  far->announce(object, 90'000, 1'000);
  ASSERT_TRUE(asked(1));
  for (const uint64_t offset : {20'000, 50'000}) {
    far->announce(object, offset, 1'000, ReadAdvice::kToDisk);  // there is no turn for it
    expect_read(*other, same, offset);
  }
  other->flush();
  const size_t before = order().size();
  far->announce(object, 20'000, 1'000);
  expect_read(*far, object, 20'000);
  expect_read(*far, object, 50'000);
  far->announce(object, 150'000, 1'000, ReadAdvice::kToDisk);
  release = true;
  expect_read(*far, object, 90'000);
  ASSERT_TRUE(asked(before + 1));
  EXPECT_EQ(order().back(), 150'000u);
}

TEST_F(StoreDiskAhead, WithdrawnRangesAreNotFetched) {
  const auto far = store();
  const auto object = far->open(server.url("/a"));
  hold(90'000);
  far->announce(object, 90'000, 1'000);
  ASSERT_TRUE(asked(1));
  for (const uint64_t offset : {20'000, 50'000})
    far->announce(object, offset, 1'000, ReadAdvice::kToDisk);
  far->forget(object, 20'000, 1'000);
  release = true;
  expect_read(*far, object, 90'000);
  ASSERT_TRUE(asked(2));
  expect_read(*far, object, 50'000);
  EXPECT_EQ(order(), (std::vector<uint64_t>{90'000, 50'000}));
}

// With the samples on the disk, which has room for all, while memory has it for a fortieth.
TEST_F(StoreDiskAhead, ALoaderReadsOnWhileTheStoreIsAway) {
  constexpr int kImages = 200;
  const auto local = local_shard(kImages);
  const uint64_t ahead = bytes_of(*local) / 40;  // of 5 images
  StoreEnv with_store(env(), store(1, ahead));
  const auto data = open_dataset(with_store, "shard:" + server.url("/a.shard"));
  const size_t opening = server.asks().size();
  LoaderOptions options = loader_options(2);
  options.prefetch = 1;
  Loader near(*local, options, augment()), loader(*data, options, augment());
  near.start_epoch(0);
  loader.start_epoch(0);
  const auto expect_batches = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Batch batch, expected;
      ASSERT_TRUE(loader.next(batch) && near.next(expected));
      EXPECT_EQ(testing::to_text({batch.pixels.get(), batch.count() * 8 * 8 * 3}),
                testing::to_text({expected.pixels.get(), expected.count() * 8 * 8 * 3}));
    }
  };
  expect_batches(2);
  // Two batches are read, and all other images are fetched; without the disk, about 8.
  ASSERT_TRUE(wait_for([&] { return server.asks().size() >= opening + kImages; }));
  with_store.store()->flush();
  break_server();
  expect_batches(kImages / kBatch - 3);  // the last one may still have been on its way
  EXPECT_THROW(with_store.open_readable(server.url("/a.shard")), Error) << "the store is away";
}

TEST_F(StoreDiskAhead, EachSampleIsFetchedOnceInARun) {
  const auto local = local_shard(60);
  const auto far = store(1, local->bytes(0) * 6);
  StoreEnv with_store(env(), far);
  const auto data = open_dataset(with_store, "shard:" + server.url("/a.shard"));
  const size_t opening = server.asks().size();
  const LoaderOptions options = loader_options(3);
  EXPECT_EQ(testing::epochs_of(*data, options, augment()),
            testing::epochs_of(*local, options, augment()));
  uint64_t fetched = 0;
  const auto asks = server.asks();
  for (size_t i = opening; i < asks.size(); ++i) fetched += asks[i].last - asks[i].first + 1;
  EXPECT_EQ(fetched, bytes_of(*local));
  EXPECT_LE(far->counts().disk_hits, 60u) << "those of the second epoch";
}

}  // namespace
}  // namespace saturate
