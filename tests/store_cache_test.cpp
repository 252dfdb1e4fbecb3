// The cache of a store on disk: shared, damaged, deleted, full.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "saturate/data/loader.h"
#include "store/extent_cache.h"
#include "store/object_store.h"
#include "store/store_url.h"
#include "tests/fault_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

namespace fs = std::filesystem;
using testing::env;
using testing::noise_text;
using testing::quick_tuning;
using testing::StoreServer;
using testing::TempDir;

constexpr size_t kObjectSize = 200'000;
constexpr size_t kRangeSize = 10'000;

class StoreCache : public ::testing::Test {
 protected:
  StoreCache() { server.put("/a", text); }

  StoreOptions options(double gb = 1) const { return {folder / "cache", gb, 60}; }
  // Reads the first `count` ranges; returns the number of requests that this took.
  size_t read_all(ObjectStore& store, size_t count = 10, const std::string& path = "/a") {
    const size_t before = server.asks().size();
    const auto object = store.open(server.url(path));
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::byte> out(kRangeSize);
      store.read(object, 10'000 + i * kRangeSize, out);
      EXPECT_EQ(testing::to_text(out), text.substr(10'000 + i * kRangeSize, kRangeSize));
    }
    store.flush();
    return server.asks().size() - before - 1;
  }
  // Files and folders whose names begin so.
  std::vector<fs::path> names(const std::string& begin) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "cache"))
      if (entry.path().filename().string().starts_with(begin)) found.push_back(entry.path());
    return found;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "cache"))
      if (entry.is_regular_file() && !entry.path().filename().string().starts_with("."))
        found.push_back(entry.path().string());
    return found;
  }
  uint64_t bytes_on_disk() const {
    uint64_t sum = 0;
    for (const std::string& file : files()) sum += fs::file_size(file);
    return sum;
  }

  const std::string text = noise_text(kObjectSize);
  StoreServer server;
  TempDir folder;
};

TEST_F(StoreCache, ServesLaterRunsAndOtherProcesses) {
  ObjectStore first(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(first), 10u);
  EXPECT_EQ(read_all(first), 0u);
  ObjectStore other(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(other), 0u);
  EXPECT_EQ(other.counts().disk_hits, 10u);
  // Ranges on the disk need no read-ahead.
  const auto object = other.open(server.url("/a"));
  const size_t before = server.asks().size();
  other.announce(object, 10'000, kRangeSize);
  other.announce(object, 190'000, kRangeSize);
  ASSERT_TRUE(testing::wait_for([&] { return server.asks().size() > before; }));
  EXPECT_EQ(server.asks().back().first, 190'000u);
}

TEST_F(StoreCache, CanBeEmptiedOfTheObjectsInUse) {
  ObjectStore other(env(), options(), quick_tuning());
  server.put("/b", text);
  read_all(other, 10, "/b");
  ObjectStore store(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(store), 10u);
  const uint64_t used = store.counts().cache_used;
  store.empty_cache();
  EXPECT_LT(store.counts().cache_used, used);
  EXPECT_EQ(read_all(store), 10u);
  EXPECT_EQ(read_all(store), 0u);
  EXPECT_EQ(read_all(store, 10, "/b"), 0u) << "it was not in use";
}

TEST_F(StoreCache, AnotherVersionOfTheObjectIsNotTakenForIt) {
  ObjectStore first(env(), options(), quick_tuning());
  read_all(first);
  server.put("/a", text, "\"2\"");
  ObjectStore second(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(second), 10u);
}

TEST_F(StoreCache, KnowsWhatAnotherProcessWroteSince) {
  ExtentCache one(env(), folder / "cache", 1, quick_tuning()),
      other(env(), folder / "cache", 1, quick_tuning());
  const auto bytes = std::make_shared<const std::vector<std::byte>>(100, std::byte{7});
  EXPECT_FALSE(other.plan("object", 0, 100, ReadAdvice::kUnknown));
  one.write_later("object", 0, bytes);
  one.flush();
  EXPECT_TRUE(other.plan("object", 0, 100, ReadAdvice::kUnknown));
  std::vector<std::byte> out(100);
  EXPECT_TRUE(other.read("object", 0, out));
  EXPECT_EQ(out, *bytes);
}

TEST(StoreUrl, WithoutASignatureIsTheSameEachTime) {
  EXPECT_EQ(unsigned_url("https://h/a?id=1&X-Amz-Signature=s&b=2"), "https://h/a?id=1&b=2");
  EXPECT_EQ(unsigned_url("https://h/a?sig=x&se=2026"), "https://h/a");
  EXPECT_EQ(unsigned_url("https://h/a?sign=x"), "https://h/a?sign=x");
  EXPECT_EQ(unsigned_url("https://h/a"), "https://h/a");
}

TEST_F(StoreCache, DamagedEntriesAreFetchedAgain) {
  ObjectStore store(env(), options(), quick_tuning());
  read_all(store);
  ASSERT_EQ(files().size(), 10u);
  const auto all = files();
  for (size_t i = 0; i < 5; ++i) {
    std::string bad = testing::read_text(all[i]);
    if (i == 0) bad[bad.size() / 2] ^= 1;
    if (i == 1) bad.resize(bad.size() / 2);
    if (i == 2) bad.clear();
    if (i == 3) bad[2] ^= 1;                       // the magic number
    if (i == 4) bad = testing::read_text(all[5]);  // another entry's bytes
    testing::write_file(all[i], bad);
  }
  EXPECT_EQ(read_all(store), 5u);
  EXPECT_EQ(store.counts().disk_damaged, 5u);
  EXPECT_EQ(read_all(store), 0u) << "they are good again";
}

TEST_F(StoreCache, MayBeDeletedAtAnyTime) {
  ObjectStore store(env(), options(), quick_tuning());
  read_all(store);
  fs::remove_all(folder / "cache");
  EXPECT_EQ(read_all(store), 10u);
  EXPECT_EQ(read_all(store), 0u);
  fs::remove(files().front());
  EXPECT_EQ(read_all(store), 1u);
}

TEST_F(StoreCache, StaysWithinItsBudget) {
  const double gb = testing::cache_gb(4, kRangeSize);
  {
    ObjectStore store(env(), options(gb), quick_tuning());
    EXPECT_EQ(read_all(store), 10u);
    EXPECT_EQ(files().size(), 4u);
    EXPECT_LE(bytes_on_disk(), uint64_t(gb * 1e9));
    EXPECT_EQ(read_all(store), 6u) << "those that are there stay";
  }
  // Another run's objects make room.
  server.put("/b", text);
  ObjectStore later(env(), options(gb), quick_tuning());
  EXPECT_EQ(read_all(later, 3, "/b"), 3u);
  EXPECT_EQ(read_all(later, 3, "/b"), 0u);
  EXPECT_LE(bytes_on_disk(), uint64_t(gb * 1e9));
  EXPECT_EQ(names(".old-").size(), 0u);
}

// Each miss is one request.
StoreTuning without_second_requests() {
  StoreTuning tuning = quick_tuning();
  tuning.second_least_s = 1'000;
  return tuning;
}

// A machine's ranges in each epoch: every fourth of a shuffled order. After the last epoch come
// some that are only known.
constexpr size_t kRanges = 200, kEpochs = 12, kLaterEpochs = 8;
std::vector<std::vector<uint32_t>> epochs_of_machine() {
  std::vector<std::vector<uint32_t>> epochs;
  for (uint32_t e = 0; e < kEpochs + kLaterEpochs; ++e)
    epochs.push_back(rank_order(epoch_order(kRanges, 5, e, {}), kRanges, {1, 4, Uneven::kJoin}));
  return epochs;
}

uint64_t next_epoch(const std::vector<std::vector<uint32_t>>& epochs, size_t epoch,
                    uint32_t range) {
  size_t next = epoch + 1;
  while (next < epoch + 1 + kLaterEpochs && next < epochs.size() &&
         std::ranges::count(epochs[next], range) == 0)
    ++next;
  return next;
}

enum class Evicts { kReadAgainLast, kLeastRecentlyUsed, kNone };

// Hits of a cache of `kept` ranges.
size_t hits_of(Evicts evicts, size_t kept) {
  const auto epochs = epochs_of_machine();
  std::map<uint32_t, std::pair<uint64_t, int64_t>> cached;  // the largest value is evicted
  int64_t time = 0;
  size_t hits = 0;
  for (size_t e = 0; e < kEpochs; ++e)
    for (const uint32_t range : epochs[e]) {
      const bool hit = cached.contains(range);
      hits += hit;
      ++time;
      if (evicts == Evicts::kReadAgainLast)
        cached[range] = {next_epoch(epochs, e, range), time};
      else if (evicts == Evicts::kLeastRecentlyUsed)
        cached[range] = {0, -time};
      else if (!hit)
        cached[range] = {0, time};
      if (cached.size() > kept)
        cached.erase(std::ranges::max_element(
            cached, [](const auto& a, const auto& b) { return a.second < b.second; }));
    }
  return hits;
}

TEST_F(StoreCache, EvictsWhatIsReadAgainLast) {
  constexpr size_t kLength = 500;
  const auto epochs = epochs_of_machine();
  server.put("/c", noise_text(1'000 + kRanges * kLength));
  for (const size_t kept : {20, 50, 100}) {
    fs::remove_all(folder / "cache");
    ObjectStore store(env(), options(testing::cache_gb(kept, kLength)), without_second_requests());
    const auto object = store.open(server.url("/c"));
    const size_t before = server.asks().size();
    size_t reads = 0;
    for (size_t e = 0; e < kEpochs; ++e)
      for (const uint32_t range : epochs[e]) {
        std::vector<std::byte> out(kLength);
        store.announce(object, 1'000 + range * kLength, kLength,
                       {ReadAdvice::kSoon, next_epoch(epochs, e, range)});
        store.read(object, 1'000 + range * kLength, out);
        store.flush();
        ++reads;
      }
    const size_t hits = reads - (server.asks().size() - before);
    EXPECT_EQ(hits, hits_of(Evicts::kReadAgainLast, kept)) << kept;
    EXPECT_EQ(hits, store.counts().disk_hits);
    EXPECT_GT(hits, hits_of(Evicts::kLeastRecentlyUsed, kept) * 5 / 4) << kept;
    EXPECT_GT(hits, hits_of(Evicts::kNone, kept) * 5 / 4) << kept;
    EXPECT_EQ(files().size(), kept);
  }
}

// One machine reads every range once in each epoch. All times between two reads of a range contain
// the end of an epoch, when the cache holds `kept` ranges: nothing serves more reads of an epoch.
TEST_F(StoreCache, ServesItsShareOfEveryEpochOfOneMachine) {
  constexpr size_t kCount = 18, kKept = 9;
  ObjectStore store(env(), options(testing::cache_gb(kKept, kRangeSize)),
                    without_second_requests());
  const auto object = store.open(server.url("/a"));
  for (uint32_t e = 0; e < 3; ++e) {
    const size_t before = server.asks().size();
    for (const uint32_t range : epoch_order(kCount, 5, e, {})) {
      std::vector<std::byte> out(kRangeSize);
      store.announce(object, (1 + range) * kRangeSize, kRangeSize);
      store.read(object, (1 + range) * kRangeSize, out);
      store.flush();
    }
    EXPECT_EQ(server.asks().size() - before, e == 0 ? kCount : kCount - kKept);
  }
}

TEST_F(StoreCache, WhatAnotherProcessUsesStays) {
  const double gb = testing::cache_gb(4, kRangeSize);
  server.put("/b", text);
  auto one = std::make_unique<ObjectStore>(env(), options(gb), quick_tuning());
  read_all(*one, 4);
  ObjectStore other(env(), options(gb), quick_tuning());
  EXPECT_EQ(read_all(other, 2, "/b"), 2u);
  EXPECT_EQ(read_all(other, 2, "/b"), 2u) << "there is no room";
  EXPECT_EQ(read_all(*one, 4), 0u);
  one.reset();
  EXPECT_EQ(read_all(other, 2, "/b"), 2u);
  EXPECT_EQ(read_all(other, 2, "/b"), 0u) << "the user has ended";
}

TEST_F(StoreCache, MarksCountWhileTheirProcessHoldsItsLock) {
  const double gb = testing::cache_gb(4, kRangeSize);
  server.put("/b", text);
  {
    ObjectStore first(env(), options(gb), quick_tuning());
    read_all(first, 4);
  }
  EXPECT_EQ(names(".process-").size(), 0u);
  ASSERT_EQ(names(".user-").size(), 1u);
  // Its number may be that of another process by now: this one's parent, which runs.
  const std::string process = std::to_string(getppid()) + "-1f";
  const fs::path mark = names(".user-")[0].parent_path() / (".user-" + process);
  fs::rename(names(".user-")[0], mark);
  auto held = env().lock(folder / "cache/.process-" + process);
  ObjectStore later(env(), options(gb), quick_tuning());
  EXPECT_EQ(read_all(later, 2, "/b"), 2u);
  EXPECT_EQ(read_all(later, 2, "/b"), 2u) << "there is no room";
  EXPECT_TRUE(fs::exists(mark));
  held.reset();  // the file stays, as after SIGKILL
  EXPECT_EQ(read_all(later, 2, "/b"), 2u);
  EXPECT_EQ(read_all(later, 2, "/b"), 0u);
  EXPECT_FALSE(fs::exists(mark));
  EXPECT_FALSE(fs::exists(folder / "cache/.process-" + process));
}

TEST_F(StoreCache, AMarkThatWasDeletedIsWrittenAgain) {
  ObjectStore store(env(), options(), quick_tuning());
  read_all(store, 1);
  for (const char* begin : {".user-", ".process-"}) {
    ASSERT_EQ(names(begin).size(), 1u);
    fs::remove(names(begin)[0]);
  }
  read_all(store, 2);
  EXPECT_EQ(names(".user-").size(), 1u);
  ASSERT_EQ(names(".process-").size(), 1u);
  EXPECT_TRUE(is_locked(names(".process-")[0]));
}

TEST_F(StoreCache, OtherFoldersStay) {
  const std::string name = "0123456789abcdef0123456789abcdef";
  const std::vector<std::string> others{name + "/notes.txt",
                                        "1" + name.substr(1) + "/sub/1-2",
                                        "0123456789ABCDEF0123456789ABCDEF/1-2",
                                        "my photographs, all of this year/1-2",
                                        ".old-photographs/notes.txt",
                                        "lists/train.txt",
                                        "lists/.new-photographs",
                                        "lists/0123456789abcdef.txt"};
  for (const std::string& other : others)
    testing::write_file(folder / "cache/" + other, std::string(100, 'x'));
  testing::write_file(folder / "cache/" + name + "/1-30000", "");  // counts as 192 KiB if it is one
  server.put("/b", text);
  const double gb = testing::cache_gb(4, kRangeSize, 2);  // and the folder `lists`
  for (const std::string path : {"/a", "/b"}) {
    ObjectStore store(env(), options(gb), quick_tuning());
    EXPECT_EQ(read_all(store, 4, path), 4u);
    EXPECT_EQ(read_all(store, 4, path), 0u) << path;
  }
  for (const std::string& other : others)
    EXPECT_TRUE(fs::exists(folder / "cache/" + other)) << other;
}

TEST_F(StoreCache, AFullDiskMeansRequests) {
  for (const FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kRename, FileOp::kClose,
                          FileOp::kMakeDirectories, FileOp::kList}) {
    fs::remove_all(folder / "cache");
    FaultEnv faulty(env());
    faulty.inject({{op, "cache"}, 0, UINT64_MAX, ENOSPC});
    ObjectStore store(faulty, options(), quick_tuning());
    EXPECT_EQ(read_all(store), 10u);
    EXPECT_EQ(read_all(store), 10u);
    if (fs::exists(folder / "cache")) {
      EXPECT_EQ(files().size(), 0u) << int(op);
    }
  }
}

TEST_F(StoreCache, ADiskThatFailsToReadMeansRequests) {
  for (const FileOp op : {FileOp::kRead, FileOp::kExamine}) {
    FaultEnv faulty(env());
    ObjectStore store(faulty, options(), quick_tuning());
    read_all(store);
    faulty.inject({{op, "cache"}, 0, UINT64_MAX, EIO});
    EXPECT_EQ(read_all(store), 10u);
  }
}

TEST_F(StoreCache, RemovesWhatEndedProcessesLeft) {
  const std::string cache = folder / "cache/", object = cache + "0123456789abcdef0123456789abcdef";
  const std::vector<std::string> left{object + "/.new-1-2f.0", object + "/.user-1-2f",
                                      cache + ".old-1-2f.0/1-1", cache + ".process-1-2f",
                                      cache + "lists/.new-1-2f.0"};
  const std::vector<std::string> others{object + "/.user-3-4f", object + "/1-1",
                                        cache + "lists/0123456789abcdef"};
  for (const auto& names : {left, others})
    for (const std::string& name : names) testing::write_file(name, "x");
  const auto held = env().lock(cache + ".process-3-4f");
  ObjectStore store(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(store), 10u);
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(name)) << name;
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(name)) << name;
  EXPECT_FALSE(fs::exists(cache + ".old-1-2f.0"));
}

}  // namespace
}  // namespace saturate
