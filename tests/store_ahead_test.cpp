// Announced ranges are requested in that order, merged, within the budget, and after those that
// readers wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "saturate/data/dataset.h"
#include "store/store_env.h"
#include "tests/ahead_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::wait_for;

class StoreAhead : public testing::AheadTest {
 protected:
  std::atomic<int> waiting{0};  // replies
  testing::TempDir folder;
};

TEST_F(StoreAhead, IsFetchedInOrderAndReadWithoutAnotherRequest) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  const std::vector<uint64_t> offsets{150'000, 20'000, 90'000, 50'000};
  for (const uint64_t offset : offsets) store.announce(object, offset, 1'000);
  ASSERT_TRUE(asked(4));
  for (const uint64_t offset : offsets)
    EXPECT_EQ(read_range(store, object, offset, 1'000), text.substr(offset, 1'000));
  EXPECT_EQ(order(), offsets);
}

TEST_F(StoreAhead, ALongRangeIsFetchedInThePartsInWhichItIsRead) {
  StoreTuning tuning = quick_tuning();
  tuning.read_bytes = 30'000;
  tuning.ahead_requests = 1;
  tuning.merged_bytes = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  store.announce(object, 20'000, 70'000);
  store.announce(object, 95'000, 30'001);
  ASSERT_TRUE(asked(5));
  EXPECT_EQ(read_range(store, object, 20'000, 70'000), text.substr(20'000, 70'000));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 50'000, 80'000, 95'000, 125'000}));
  store.forget(object, 95'000, 30'001);
  store.announce(object, 150'000, 1'000);
  ASSERT_TRUE(asked(6)) << "nothing is held";
}

TEST_F(StoreAhead, AReaderThatWaitsGoesFirst) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  hold(20'000);
  for (const uint64_t offset : {20'000, 50'000, 90'000, 150'000})
    store.announce(object, offset, 1'000);
  ASSERT_TRUE(asked(1));
  EXPECT_EQ(read_range(store, object, 150'000, 1'000), text.substr(150'000, 1'000));
  EXPECT_EQ(read_range(store, object, 199'000, 1'000), text.substr(199'000)) << "not announced";
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 150'000, 199'000}));
  release = true;
  ASSERT_TRUE(asked(5));
  EXPECT_EQ(read_range(store, object, 90'000, 1'000), text.substr(90'000, 1'000));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 150'000, 199'000, 50'000, 90'000}));
}

TEST_F(StoreAhead, NeighboursBecomeOneRequest) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  tuning.merged_bytes = 8'000;
  tuning.merged_gap = 100;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  hold(150'000);
  store.announce(object, 150'000, 10);
  ASSERT_TRUE(asked(1));
  // Out of order; the last two are too far away.
  const std::vector<uint64_t> offsets{22'100, 20'000, 21'050, 23'250, 27'500};
  for (const uint64_t offset : offsets) store.announce(object, offset, 1'000);
  release = true;
  ASSERT_TRUE(asked(4));
  for (const uint64_t offset : offsets)
    EXPECT_EQ(read_range(store, object, offset, 1'000), text.substr(offset, 1'000)) << offset;
  const auto asks = server.asks();
  ASSERT_EQ(asks.size(), 5u);
  EXPECT_EQ(asks[2].first, 20'000u);
  EXPECT_EQ(asks[2].last, 23'099u);
}

// Which share a token with the next one.
TEST_F(StoreAhead, NeighbouringSamplesOfTokensBecomeOneRequest) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), StoreOptions(), tuning));
  const auto data =
      open_dataset(with_store, "tokens:" + server.url("/a") + ",context=100,type=uint8");
  testing::write_file(folder / "a", text);
  const auto local = open_dataset(env(), "tokens:" + (folder / "a") + ",context=100,type=uint8");
  hold(150'000);
  data->advise(ReadAdvice::kSoon, 1'500, 1);
  ASSERT_TRUE(asked(1));
  for (size_t i = 0; i < 16; ++i) data->advise(ReadAdvice::kSoon, 32 + i * 7 % 16, 1);
  release = true;
  ASSERT_TRUE(asked(2));
  Sample here, there;
  for (size_t i = 32; i < 48; ++i) {
    local->read(i, here);
    data->read(i, there);
    EXPECT_EQ(here.bytes, there.bytes) << i;
  }
  EXPECT_EQ(order(), (std::vector<uint64_t>{150'000, 3'200}));
}

// One range holds others.
TEST_F(StoreAhead, RangesWithinARangeBecomeOneRequest) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  hold(150'000);
  store.announce(object, 150'000, 10);
  ASSERT_TRUE(asked(1));
  const std::vector<std::pair<uint64_t, size_t>> ranges{
      {21'000, 500}, {20'000, 5'000}, {22'000, 100}};
  for (const auto& [offset, length] : ranges) store.announce(object, offset, length);
  release = true;
  ASSERT_TRUE(asked(2));
  for (const auto& [offset, length] : ranges)
    EXPECT_EQ(read_range(store, object, offset, length), text.substr(offset, length));
  EXPECT_EQ(order(), (std::vector<uint64_t>{150'000, 20'000}));
}

TEST_F(StoreAhead, NeverHoldsMoreThanTheBudget) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_bytes = 2'500;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  for (uint64_t i = 0; i < 10; ++i) store.announce(object, 10'000 * (i + 1), 1'000);
  ASSERT_TRUE(asked(2));
  EXPECT_EQ(read_range(store, object, 199'000, 100), text.substr(199'000, 100));
  EXPECT_EQ(order().size(), 3u) << "the budget holds two";
  for (uint64_t i = 0; i < 10; ++i)
    EXPECT_EQ(read_range(store, object, 10'000 * (i + 1), 1'000),
              text.substr(10'000 * (i + 1), 1'000));
  EXPECT_EQ(order().size(), 11u);
}

TEST_F(StoreAhead, WhatIsWithdrawnFreesTheBudget) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_bytes = 1'000;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  hold(20'000);
  for (const uint64_t offset : {20'000, 50'000, 90'000}) store.announce(object, offset, 1'000);
  ASSERT_TRUE(asked(1));
  store.forget(object, 50'000);  // waits in the queue
  store.forget(object, 20'000);  // loads
  release = true;
  ASSERT_TRUE(asked(2));
  EXPECT_EQ(read_range(store, object, 90'000, 1'000), text.substr(90'000, 1'000));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 90'000}));
  store.announce(object, 120'000, 1'000);
  ASSERT_TRUE(asked(3));
  store.forget_all(object);  // loads, or is there
  store.announce(object, 130'000, 1'000);
  EXPECT_TRUE(asked(4));
}

// A range that says which one is read after it: that takes its turn.
TEST_F(StoreAhead, TheRangeAfterARangeIsFetchedInItsTurn) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  const auto announce_two = [&](uint64_t offset) {
    store.announce(object, offset, 100, ReadAdvice::kSoon,
                   [this, offset](std::span<const std::byte> bytes) {
                     EXPECT_EQ(testing::to_text(bytes), text.substr(offset, 100));
                     return ByteRange{offset + 5'000, 1'000};
                   });
  };
  const std::vector<uint64_t> offsets{150'000, 20'000, 90'000};
  for (const uint64_t offset : offsets) announce_two(offset);
  ASSERT_TRUE(asked(6));
  EXPECT_EQ(order(), (std::vector<uint64_t>{150'000, 155'000, 20'000, 25'000, 90'000, 95'000}));
  for (const uint64_t offset : offsets) {
    EXPECT_EQ(read_range(store, object, offset, 100), text.substr(offset, 100));
    EXPECT_EQ(read_range(store, object, offset + 5'000, 1'000), text.substr(offset + 5'000, 1'000));
  }
  EXPECT_EQ(order().size(), 6u);
}

TEST_F(StoreAhead, NothingFollowsAWithdrawnRange) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_bytes = 1'200;  // less than the pairs together
  tuning.ahead_requests = 1;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  const auto announce_two = [&](uint64_t offset, uint64_t next) {
    store.announce(object, offset, 100, ReadAdvice::kSoon, [next](std::span<const std::byte>) {
      return ByteRange{next, 1'000};
    });
  };
  hold(20'000);
  announce_two(20'000, 25'000);
  ASSERT_TRUE(asked(1));
  store.forget(object, 20'000, 10'000);  // loads
  release = true;
  announce_two(50'000, 55'000);
  ASSERT_TRUE(asked(3));
  store.forget(object, 50'000, 10'000);  // both
  announce_two(90'000, 300'000);         // past the end: ignored
  announce_two(120'000, 125'000);
  ASSERT_TRUE(asked(6));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 50'000, 55'000, 90'000, 120'000, 125'000}));
}

// Half of the budget: two ranges of the later ones.
TEST_F(StoreAhead, LaterRangesAreFetchedAfterTheOthersAndLeaveThemHalfOfTheBudget) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  tuning.ahead_bytes = 4'000;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  const auto announce_later = [&](uint64_t offset) {
    store.announce(object, offset, 1'000, ReadAdvice::kLater);
  };
  hold(20'000);
  for (const uint64_t offset : {20'000, 50'000, 90'000, 120'000}) announce_later(offset);
  ASSERT_TRUE(asked(1));
  store.announce(object, 150'000, 1'000);
  release = true;
  ASSERT_TRUE(asked(2));
  EXPECT_EQ(read_range(store, object, 150'000, 1'000), text.substr(150'000, 1'000));
  ASSERT_TRUE(asked(3));
  read_range(store, object, 199'000, 10);  // when what is fetched has come
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 150'000, 50'000, 199'000}));
  // They come soon now: out of turn, and with all of the budget.
  store.announce(object, 120'000, 1'000);
  store.announce(object, 90'000, 1'000);
  ASSERT_TRUE(asked(6));
  for (const uint64_t offset : {20'000, 50'000, 90'000, 120'000})
    EXPECT_EQ(read_range(store, object, offset, 1'000), text.substr(offset, 1'000));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 150'000, 50'000, 199'000, 120'000, 90'000}));
}

TEST_F(StoreAhead, TheRangeAfterALaterRangeIsLaterToo) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 1;
  tuning.ahead_bytes = 1'500;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  const auto announce_two = [&](ReadAdvice advice) {
    store.announce(object, 20'000, 100, advice, [](std::span<const std::byte>) {
      return ByteRange{25'000, 1'000};
    });
  };
  announce_two(ReadAdvice::kLater);
  ASSERT_TRUE(asked(1));
  read_range(store, object, 199'000, 10);
  EXPECT_EQ(order().size(), 2u) << "the second does not fit into half of the budget";
  announce_two(ReadAdvice::kSoon);
  ASSERT_TRUE(asked(3));
  read_range(store, object, 20'000, 100);
  EXPECT_EQ(read_range(store, object, 25'000, 1'000), text.substr(25'000, 1'000));
  EXPECT_EQ(order(), (std::vector<uint64_t>{20'000, 199'000, 25'000}));
}

TEST_F(StoreAhead, AFailureAheadIsNotTheReaders) {
  StoreOptions options;
  options.timeout_s = 0;  // no second attempt
  ObjectStore store(env(), options, quick_tuning());
  const auto object = store.open(server.url("/a"));
  std::atomic<bool> fails{true};
  server.tamper([&](const HttpAsk&, HttpAnswer& answer) {
    if (fails) answer = {503, {}, "busy"};
  });
  const uint64_t before = store.counts().bytes;
  store.announce(object, 20'000'000, 1'000);  // past the end: ignored
  store.announce(object, 20'000, 1'000);
  ASSERT_TRUE(wait_for([&] { return store.counts().bytes == before + 4; }));
  fails = false;
  read_range(store, object, 90'000, 10);  // after the failure, on the one thread of transfers
  EXPECT_EQ(read_range(store, object, 20'000, 1'000), text.substr(20'000, 1'000));
}

TEST_F(StoreAhead, MoreAreRequestedAtATimeIfRepliesAreLate) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_requests = 2;
  tuning.adapts = true;
  server.tamper([this](const HttpAsk& ask, HttpAnswer&) {
    if (ask.number == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (ask.number > 0 && ++waiting > 8) release = true;
    if (ask.number > 0) wait_for([this] { return release.load(); });
  });
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  for (uint64_t i = 0; i < 40; ++i) store.announce(object, 2'000 + i * 4'900, 100);
  EXPECT_TRUE(wait_for([this] { return release.load(); })) << "nine replies wait at a time";
}

TEST_F(StoreAhead, PartsDoNotPayWhileTheReadersAreSlowerThanTheLink) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_bytes = 10'000;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  for (uint64_t i = 1; i <= 6; ++i) store.announce(object, i * 20'000, 1'000);
  ASSERT_TRUE(wait_for([&] { return store.request_bytes(*object) == UINT64_MAX; }));
  read_range(store, object, 20'000, 1'000);
  EXPECT_LT(store.request_bytes(*object), UINT64_MAX) << "half of the budget is free";
  store.announce(object, 20'000, 1'000);
  ASSERT_TRUE(wait_for([&] { return store.request_bytes(*object) == UINT64_MAX; }));
  store.forget(object, 100'000, 30'000);
  EXPECT_LT(store.request_bytes(*object), UINT64_MAX);
}

TEST_F(StoreAhead, ManyReadersGetTheirOwnBytes) {
  StoreTuning tuning = quick_tuning();
  tuning.ahead_bytes = 20'000;
  tuning.ahead_requests = 3;
  ObjectStore store(env(), {}, tuning);
  const auto object = store.open(server.url("/a"));
  std::atomic<size_t> good{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 100; ++i) {
        const uint64_t offset = 10'000 + (i * 37 + t * 13) % 180 * 1'000;
        store.announce(object, offset + 1'000, 700);
        good += read_range(store, object, offset, 700) == text.substr(offset, 700);
        if (i % 10 == 9) store.forget(object, offset + 1'000);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 400u);
}

}  // namespace
}  // namespace saturate
