// The link of a store, from its counts.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "store/link.h"
#include "store/object_store.h"
#include "tests/paths.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::noise_text;
using testing::quick_tuning;
using testing::StoreServer;
using testing::TempDir;

StoreCounts counts_of(uint64_t requests, uint64_t bytes, uint64_t disk_bytes, double request_s,
                      double waiting_s) {
  StoreCounts counts;
  counts.requests = requests;
  counts.bytes = bytes;
  counts.disk_bytes = disk_bytes;
  counts.request_s = request_s;
  counts.waiting_s = waiting_s;
  return counts;
}

bool has_line(const LinkUse& link, const std::string& text) {
  for (const std::string& line : link_advice(link))
    if (line.find(text) != std::string::npos) return true;
  return false;
}

TEST(StoreLink, IsTheDifferenceOfTwoCounts) {
  const StoreCounts before = counts_of(10, 1'000'000, 500, 5, 1);
  StoreCounts after = counts_of(50, 5'000'000, 1'000'500, 15, 8.5);
  after.ahead_bytes = 4 * 512 * 100'000;
  after.cache_used = after.cache_budget = 1;
  after.first_bytes_s.assign(60, 1.0);  // of earlier requests
  for (int i = 40; i > 0; --i) after.first_bytes_s.push_back(i * 1e-3);
  const LinkUse link = link_use(before, after, 2);
  EXPECT_DOUBLE_EQ(link.bytes_per_s, 2e6);
  EXPECT_DOUBLE_EQ(link.requests_per_s, 20);
  EXPECT_DOUBLE_EQ(link.disk_share, 0.2);
  EXPECT_DOUBLE_EQ(link.first_byte_s, 0.020);
  EXPECT_DOUBLE_EQ(link.late_first_byte_s, 0.038);
  // Requests took 10 s, 7.5 s of it without a byte; half of the bytes take half of the rest. Four
  // samples in a request have three first bytes less.
  EXPECT_DOUBLE_EQ(link.large_requests, 4 / (0.75 + 4 * 0.25));
  EXPECT_DOUBLE_EQ(link.half_bytes, 10 / 8.75);
  EXPECT_EQ(link_text(link),
            "2.0 MB/s in 20 requests/s; first byte after 20.0 ms (median), 38.0 ms (95th "
            "percentile); 20 % of the bytes from the cache on disk");
  EXPECT_TRUE(has_line(link, "large requests: up to 2.3x. Pack into shards"));
  EXPECT_TRUE(has_line(link, "half the bytes: about 1.1x"));
  EXPECT_TRUE(has_line(link, "the other 80 % of the bytes"));
}

TEST(StoreLink, UsesAreAdded) {
  StoreCounts first = counts_of(10, 1'000, 100, 5, 1), second = counts_of(30, 5'000, 400, 8, 3),
              sum;
  first.first_bytes_s.assign(10, 1.0);
  second.first_bytes_s.assign(10, 1.0);
  second.first_bytes_s.resize(30, 3.0);
  second.cache_budget = 7;
  add_use(sum, {}, first);
  add_use(sum, first, second);
  EXPECT_EQ(sum.requests, 30u);
  EXPECT_EQ(sum.bytes, 5'000u);
  EXPECT_EQ(sum.disk_bytes, 400u);
  EXPECT_DOUBLE_EQ(sum.request_s, 8);
  EXPECT_DOUBLE_EQ(sum.waiting_s, 3);
  EXPECT_EQ(sum.first_bytes_s, second.first_bytes_s);
  EXPECT_EQ(sum.cache_budget, 7u) << "as at the end";
}

TEST(StoreLink, SpeedupsAreThoseOfTheRun) {
  LinkUse link = link_use({}, counts_of(10, 1'000'000, 0, 10, 0.01), 1);
  EXPECT_TRUE(has_line(link, "half the bytes: about 2.0x"));
  link.network_share = 0.5;  // the other half is decoding
  EXPECT_TRUE(has_line(link, "half the bytes: about 1.3x"));
  EXPECT_TRUE(has_line(link,
                       "a cache on disk: about 1.3x from the second epoch on if it holds "
                       "half of the dataset, and about 2.0x if it holds all"));
  link.network_share = 1;
  link.most = 1.5;  // then computing is the limit
  EXPECT_TRUE(has_line(link, "half the bytes: about 1.5x"));
  for (const auto& [share, most] :
       {std::pair(1.0, 1.05), std::pair(0.05, 9.0), std::pair(0.0, 9.0)}) {
    link.network_share = share;
    link.most = most;
    ASSERT_EQ(link_advice(link).size(), 1u);
    EXPECT_TRUE(has_line(link, "it is not the limit: at most 1.0"));
  }
}

TEST(StoreLink, AdvisesNoCacheIfOneIsSet) {
  StoreCounts counts = counts_of(10, 1'000'000, 0, 10, 1);
  counts.cache_used = 2'000'000'000;
  counts.cache_budget = 10'000'000'000;
  LinkUse link = link_use({}, counts, 1);
  EXPECT_FALSE(has_line(link, "Set data.cache_dir"));
  EXPECT_TRUE(has_line(link, "data.cache_dir holds 2.0 of at most 10.0 GB so far"));
  EXPECT_FALSE(has_line(link, "Raise data.cache_gb"));
  link.cache_used = 9'990'000'000;
  EXPECT_TRUE(has_line(link, "about 2.0x if it holds half of the dataset"));
  EXPECT_TRUE(has_line(link, "Raise data.cache_gb"));
}

TEST(StoreLink, AdvisesOnlyMissingPackingAndOrder) {
  LinkUse link = link_use({}, counts_of(10, 1'000, 0, 10, 10), 1);
  link.large_requests = 2;
  EXPECT_TRUE(has_line(link, "Pack into shards (saturate data pack), and set data.shuffle=block"));
  link.is_packed = true;
  EXPECT_TRUE(has_line(link, "large requests: up to 2.0x. Set data.shuffle=block"));
  EXPECT_FALSE(has_line(link, "Pack into shards"));
  link.in_random_order = false;
  EXPECT_FALSE(has_line(link, "large requests"));
  link.is_packed = false;
  EXPECT_TRUE(has_line(link, "large requests: up to 2.0x. Pack into shards"));
  EXPECT_FALSE(has_line(link, "data.shuffle"));
}

// The measurements of docs/performance.md: at most 256 requests were in progress.
TEST(StoreLink, PredictsTheMeasuredSpeedupsOfBlockOrder) {
  std::map<std::string, std::map<std::string, double>> rows;  // medians by name and unit
  std::ifstream file(testing::source_path("results/storage_network_2gb.json"));
  const auto json = nlohmann::json::parse(file);
  for (const auto& row : json["rows"]) rows[row["name"]][row["unit"]] = row["median"];
  for (const std::string delay : {"20", "100", "200", "500"}) {
    const auto row = [&](const std::string& order) {
      return rows.at(delay + " ms a request, " + order + " cold threads=2");
    };
    auto random = row("shuffled");
    const double requests = random["requests/s"];
    StoreCounts counts = counts_of(uint64_t(requests), uint64_t(random["network MB/s"] * 1e6), 0,
                                   256, requests * random["ms to the first byte"] * 1e-3);
    counts.ahead_bytes = StoreTuning().ahead_bytes;
    const double predicted = link_use({}, counts, 1).large_requests,
                 measured = row("block")["samples/s"] / random["samples/s"];
    EXPECT_LT(predicted, 1.5 * measured) << delay;
    EXPECT_GT(predicted, measured / 1.5) << delay;
  }
}

TEST(StoreLink, PredictsALargerCache) {
  // 2 MB/s of all bytes, a quarter of which the disk serves at 10 MB/s.
  StoreCounts counts = counts_of(10, 6'000'000, 2'000'000, 10, 1);
  counts.disk_s = 0.2;
  counts.cache_used = counts.cache_budget = 1;
  const LinkUse link = link_use({}, counts, 4);
  EXPECT_DOUBLE_EQ(link.larger_cache, 1.5) << "half of the bytes instead of three quarters";
  EXPECT_DOUBLE_EQ(link.whole_cache, 5) << "the disk's rate over that of now";
  EXPECT_TRUE(has_line(link,
                       "the other 75 % of the bytes: about 1.5x if it is twice as large, "
                       "about 5.0x if it holds all (one reader of the disk gets 10 MB/s)"));
  counts.disk_bytes = 10'000'000;  // most come from the disk: twice as much is all
  counts.disk_s = 1;
  const LinkUse most = link_use({}, counts, 4);
  EXPECT_DOUBLE_EQ(most.larger_cache, 2.5);
  EXPECT_DOUBLE_EQ(most.whole_cache, 2.5);
  const LinkUse none = link_use({}, counts_of(10, 1'000'000, 0, 10, 1), 1);
  EXPECT_DOUBLE_EQ(none.larger_cache, 2);
  EXPECT_TRUE(has_line(none, "about 2.0x from the second epoch on"));
}

TEST(StoreLink, PredictsSegmentsByTheShareOfTheBytesThatCropsNeed) {
  LinkUse link = link_use({}, counts_of(10, 1'000'000, 0, 10, 0.5), 1);
  EXPECT_DOUBLE_EQ(segments_speedup(link), 1) << "not for this source";
  link.crop_share = 0.6;
  EXPECT_DOUBLE_EQ(segments_speedup(link), 1 / (2 * 0.05 + 0.95 * 0.63));
  EXPECT_TRUE(has_line(link, "JPEGs in segments: about 1.4x. Crops need 63 % of the bytes"));
  link.in_random_order = false;
  EXPECT_FALSE(has_line(link, "segments")) << "neighbours are read whole";
  link.in_random_order = true;
  link.waiting = 0.5;  // a second reply costs more than the bytes
  EXPECT_FALSE(has_line(link, "segments"));
}

TEST(StoreLink, AdvisesNothingThatDoesNotPay) {
  // Bytes take all of the time, and nothing is on the disk.
  const LinkUse busy = link_use({}, counts_of(10, 1'000'000, 0, 10, 0.01), 1);
  EXPECT_FALSE(has_line(busy, "shards"));
  EXPECT_TRUE(has_line(busy, "half the bytes: about 2.0x"));
  EXPECT_TRUE(has_line(busy, "Set data.cache_dir"));
  // First bytes take all of it.
  StoreCounts empty = counts_of(10, 1'000, 0, 10, 10);
  empty.ahead_bytes = 1 << 20;
  const LinkUse waiting = link_use({}, empty, 1);
  EXPECT_TRUE(has_line(waiting, "shards"));
  EXPECT_FALSE(has_line(waiting, "half the bytes"));
  // All comes from the disk.
  EXPECT_TRUE(link_advice(link_use({}, counts_of(0, 0, 1'000, 0, 0), 1)).empty());
  EXPECT_TRUE(link_advice(link_use({}, {}, 0)).empty());
}

TEST(StoreLink, ARequestCostsTheBytesOfItsWait) {
  // 10 requests waited, the first of them for 20 ms, and then received 1 MB/s.
  StoreCounts counts = counts_of(10, 2'000'000, 0, 3, 1);
  counts.least_first_byte_s = 0.02;
  EXPECT_EQ(bytes_while_waiting(counts), 20'000u);
  EXPECT_EQ(bytes_while_waiting(counts_of(10, 2'000, 0, 1, 1)), UINT64_MAX);
  EXPECT_EQ(bytes_while_waiting({}), UINT64_MAX);
}

TEST(StoreLink, CountsEveryRequestAndTheCachesBytes) {
  StoreServer server;
  TempDir folder;
  server.put("/a", noise_text(100'000));
  ObjectStore store(env(), {folder / "cache", 1, 60}, quick_tuning());
  const auto object = store.open(server.url("/a"));
  std::vector<std::byte> out(10'000);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 1; i < 6; ++i) store.read(object, i * 10'000, out);
    store.flush();
  }
  const StoreCounts counts = store.counts();
  EXPECT_EQ(counts.requests, 6u);
  EXPECT_EQ(counts.first_bytes_s.size(), 6u);
  EXPECT_EQ(counts.disk_bytes, 50'000u);
  double sum = 0;
  for (const double first : counts.first_bytes_s) sum += first;
  EXPECT_GT(counts.waiting_s, 0);
  EXPECT_NEAR(counts.waiting_s, sum, 1e-9);
  EXPECT_GE(counts.request_s, counts.waiting_s);
}

}  // namespace
}  // namespace saturate
