// The cache of a store on disk: shared, damaged, deleted, full.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>

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
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "cache"))
      if (entry.is_regular_file()) found.push_back(entry.path().string());
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
  EXPECT_FALSE(other.has("object", 0, 100));
  one.write_later("object", 0, bytes);
  one.flush();
  EXPECT_TRUE(other.has("object", 0, 100));
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
  const double gb = 45'000e-9;  // four ranges
  ObjectStore store(env(), options(gb), quick_tuning());
  EXPECT_EQ(read_all(store), 10u);
  EXPECT_EQ(files().size(), 4u);
  EXPECT_LE(bytes_on_disk(), 45'000u);
  EXPECT_EQ(read_all(store), 6u) << "those that are there stay";
  // Another run's objects make room.
  server.put("/b", text);
  ObjectStore later(env(), options(gb), quick_tuning());
  EXPECT_EQ(read_all(later, 3, "/b"), 3u);
  EXPECT_EQ(read_all(later, 3, "/b"), 0u);
  EXPECT_LE(bytes_on_disk(), 45'000u);
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
  FaultEnv faulty(env());
  ObjectStore store(faulty, options(), quick_tuning());
  read_all(store);
  faulty.inject({{FileOp::kRead, "cache"}, 0, UINT64_MAX, EIO});
  EXPECT_EQ(read_all(store), 10u);
}

TEST_F(StoreCache, RemovesWhatEndedProcessesLeft) {
  ObjectStore(env(), options(), quick_tuning());
  const std::string object = folder / "cache/0123456789abcdef0123456789abcdef";
  testing::write_file(object + "/.new-999999999-0", "half");
  testing::write_file(object + "/.new-" + std::to_string(getpid()) + "-0", "half");
  testing::write_file(object + "/notes.txt", "not an entry");
  ObjectStore store(env(), options(), quick_tuning());
  EXPECT_EQ(read_all(store), 10u);
  EXPECT_FALSE(fs::exists(object + "/.new-999999999-0"));
  EXPECT_TRUE(fs::exists(object + "/.new-" + std::to_string(getpid()) + "-0"));
}

}  // namespace
}  // namespace saturate
