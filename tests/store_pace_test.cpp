// How many requests for announced ranges there are at a time, and how large they become: the ends
// of what the link decides.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "store/object_store.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using std::chrono::milliseconds;
using testing::env;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::noise_text;
using testing::StoreServer;
using testing::wait_for;

constexpr uint64_t kApart = 5'000;         // more than what is read between two ranges
constexpr uint64_t kAhead = 200'000;       // announced ranges begin here
constexpr uint64_t kNeighbours = 2 << 20;  // and those without a gap here
constexpr size_t kPaceSize = 13 << 20;

class StorePace : public ::testing::Test {
 protected:
  StorePace() { server.put("/a", noise_text(kPaceSize)); }
  ~StorePace() override { release = true; }

  // Replies take this long until their headers, and then until their bodies. Those to announced
  // ranges wait for `release`.
  void link(milliseconds first_byte, milliseconds body) {
    server.tamper([this, first_byte, body](const HttpAsk& ask, HttpAnswer& answer) {
      if (ask.first >= kAhead) wait_for([this] { return release.load(); });
      std::this_thread::sleep_for(first_byte);
      answer.pause = body;
    });
  }
  void read(uint64_t length) {
    std::vector<std::byte> out(length);
    store.read(object, 1'000, out);
  }
  void announce(size_t count, uint64_t length) {
    for (size_t i = 0; i < count; ++i)
      store.announce(object, kAhead + i * (length + kApart), length);
  }
  // Lengths of the ranges that were requested from `offset` on.
  std::vector<uint64_t> lengths(uint64_t offset) const {
    std::vector<uint64_t> found;
    for (const HttpAsk& ask : server.asks())
      if (ask.first >= offset) found.push_back(ask.length());
    return found;
  }
  // Expects that this many ranges of that length are requested before the first reply.
  void expect_at_a_time(size_t count, uint64_t length) {
    announce(280, length);
    EXPECT_TRUE(wait_for([&] { return lengths(kAhead).size() >= count; }))
        << lengths(kAhead).size();
    read(100);  // requested after them
    EXPECT_EQ(lengths(kAhead).size(), count);
  }
  // The largest request for neighbours, of which all wait for `before` other ranges of 100 bytes.
  uint64_t largest_merged(size_t before, size_t count, uint64_t length) {
    announce(before, 100);
    for (size_t i = 0; i < count; ++i) store.announce(object, kNeighbours + i * length, length);
    EXPECT_TRUE(lengths(kNeighbours).empty());
    release = true;
    EXPECT_TRUE(wait_for([&] {
      uint64_t sum = 0;
      for (const uint64_t found : lengths(kNeighbours)) sum += found;
      return sum == count * length;
    }));
    const auto found = lengths(kNeighbours);
    return found.empty() ? 0 : *std::ranges::max_element(found);
  }
  // A link whose replies begin within a millisecond, and have 1,000 bytes in 20 ms.
  bool is_near() {
    link(milliseconds(0), milliseconds(20));
    open();
    for (int i = 0; i < 100 && store.counts().least_first_byte_s >= 0.0009; ++i) read(1'000);
    return store.counts().least_first_byte_s < 0.0009;
  }
  void open() { object = store.open(server.url("/a")); }

  static StoreTuning tuning() {
    StoreTuning usual = testing::quick_tuning();
    usual.adapts = true;
    usual.second_least_s = 1'000;  // each range is one request
    return usual;
  }

  std::atomic<bool> release{false};
  StoreServer server;
  ObjectStore store{env(), {}, tuning()};
  ObjectStore::ObjectPtr object;
};

TEST_F(StorePace, LateRepliesMeanTwoHundredFiftySixRequestsAtMost) {
  link(milliseconds(20), milliseconds(0));
  open();
  for (int i = 0; i < 3; ++i) read(50'000);
  expect_at_a_time(256, 100);
}

// They do not queue behind what is read ahead.
TEST_F(StorePace, ManyReadersHaveAConnectionEach) {
  constexpr uint64_t kReaders = 320;
  open();
  // Shared: the server looks at it until it ends.
  const auto asked = std::make_shared<std::atomic<uint64_t>>(0);
  server.tamper([asked](const HttpAsk&, HttpAnswer&) {
    ++*asked;
    wait_for([&] { return *asked >= kReaders; });
  });
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < kReaders; ++i)
    readers.emplace_back([this, i] {
      std::vector<std::byte> out(100);
      store.read(object, kAhead + i * kApart, out);
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15))
      << "before requests that stall are sent again";
}

TEST_F(StorePace, ANearServerWithSlowRepliesMeansEightAtLeast) {
  if (!is_near()) GTEST_SKIP() << "this machine takes longer than a millisecond to reply";
  expect_at_a_time(8, 10'000);
}

TEST_F(StorePace, AFarServerWithSlowRepliesMeansTheUsualNumber) {
  link(milliseconds(5), milliseconds(20));
  open();
  for (int i = 0; i < 3; ++i) read(1'000);
  expect_at_a_time(32, 10'000);
}

TEST_F(StorePace, NeighboursBecomeRequestsOfFourMegabytesAtMost) {
  link(milliseconds(100), milliseconds(0));
  open();
  for (int i = 0; i < 4; ++i) read(100'000);
  EXPECT_EQ(largest_merged(256, 40, 256 << 10), uint64_t{4} << 20);
}

TEST_F(StorePace, NeighboursBecomeRequestsOfSixtyFourKilobytesAtLeast) {
  if (!is_near()) GTEST_SKIP() << "this machine takes longer than a millisecond to reply";
  EXPECT_EQ(largest_merged(32, 64, 8 << 10), uint64_t{64} << 10);
}

}  // namespace
}  // namespace saturate
