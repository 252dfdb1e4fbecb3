// Two caches of a store in one folder.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/cache_space.h"
#include "store/extent_cache.h"
#include "tests/fault_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

namespace fs = std::filesystem;
using testing::env;
using testing::quick_tuning;
using testing::TempDir;

constexpr uint64_t kLength = 984;

// The file of the lock is another one whenever it is looked at.
class ReplacingEnv : public FaultEnv {
 public:
  explicit ReplacingEnv(std::string file) : FaultEnv(env()), file_(std::move(file)) {}
  int64_t now_ns() override {
    fs::remove(file_);
    return now_ns_ += 1'000'000'000;
  }

 private:
  const std::string file_;
  int64_t now_ns_ = 0;
};

class StoreSharedCache : public ::testing::Test {
 protected:
  // `entries`: its budget, of so many objects.
  std::unique_ptr<ExtentCache> cache_of(uint64_t entries, Env& files = env(),
                                        size_t objects = 1) const {
    return std::make_unique<ExtentCache>(
        files, folder / "cache", testing::cache_gb(entries, kLength, objects), quick_tuning());
  }
  void write(ExtentCache& cache, const std::string& object, uint64_t number,
             uint64_t next_use = ReadAdvice::kUnknown) {
    cache.plan(object, number * kLength, kLength, next_use);
    cache.write_later(object, number * kLength, bytes);
    cache.flush();
  }
  bool has(ExtentCache& cache, const std::string& object, uint64_t number) const {
    std::vector<std::byte> out(kLength);
    return cache.read(object, number * kLength, out);
  }
  // Files whose names begin so; "": entries.
  size_t count(const std::string& begin = "") const {
    size_t found = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "cache")) {
      const std::string name = entry.path().filename();
      found +=
          entry.is_regular_file() && (begin.empty() ? name[0] != '.' : name.starts_with(begin));
    }
    return found;
  }

  // As du.
  uint64_t bytes_on_disk() const {
    uint64_t sum = 0;
    std::error_code none;
    for (fs::recursive_directory_iterator at(folder / "cache", none), end; at != end;
         at.increment(none)) {
      struct stat info;
      if (::lstat(at->path().c_str(), &info) == 0) sum += uint64_t(info.st_blocks) * 512;
    }
    return sum;
  }

  const std::shared_ptr<const std::vector<std::byte>> bytes =
      std::make_shared<const std::vector<std::byte>>(kLength, std::byte{7});
  TempDir folder;
};

// Two that began with an empty folder, also if they only put ranges in the place of others.
TEST_F(StoreSharedCache, ALockWhoseFileIsAnotherOneEachTimeIsAnError) {
  ReplacingEnv files(folder / "cache/.space");
  const Error error = testing::error_of([&] { const CacheSpace space(files, folder / "cache"); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("other processes keep replacing it"), std::string::npos)
      << error.what();
}

// Its clock's seconds pass while the lock is waited for; its holder counts for 100 of them.
class CountingEnv : public FaultEnv {
 public:
  explicit CountingEnv(const std::string& folder) : FaultEnv(env()) {
    held.emplace(env(), folder);
    use_fake_clock();
  }
  void sleep_ns(int64_t) override {
    FaultEnv::sleep_ns(1'000'000'000);
    if (now_ns() >= 100'000'000'000)
      held.reset();
    else if (held)
      held->note_progress();
  }
  std::optional<CacheSpace> held;
};

TEST_F(StoreSharedCache, ALockWhoseHolderMakesProgressIsWaitedFor) {
  CountingEnv files(folder / "cache");
  const CacheSpace space(files, folder / "cache");
  EXPECT_FALSE(files.held);
}

TEST_F(StoreSharedCache, NeverExceedsItsBudget) {
  const auto one = cache_of(16, env(), 2), other = cache_of(16, env(), 2);
  one->use("a");
  other->use("b");
  for (uint64_t i = 0; i < 10; ++i) write(*one, "a", i, 100 - i);
  for (uint64_t i = 0; i < 10; ++i) write(*other, "b", i, 1);
  EXPECT_EQ(count(), 16u);
  for (uint64_t i = 16; i < 20; ++i) write(*one, "a", i, 50 - i);
  EXPECT_EQ(count(), 16u);
  for (uint64_t i = 16; i < 20; ++i) EXPECT_TRUE(has(*one, "a", i));
}

TEST_F(StoreSharedCache, NeverExceedsItsBudgetWhileSeveralWrite) {
  constexpr uint64_t kBudget = 4'000'000;
  std::atomic<bool> ended{false};
  uint64_t most = 0, most_counted = 0;
  std::thread watcher([&] {
    while (!ended) {
      {
        CacheSpace space(env(), folder / "cache");  // nobody writes meanwhile
        most = std::max(most, bytes_on_disk());
        if (space.is_known()) {
          most_counted = std::max(most_counted, space.used);
          space.commit();
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<std::thread> writers;
  for (const std::string object : {"a", "b", "c"})
    writers.emplace_back([&, object] {
      for (uint64_t round = 0; round < 2; ++round) {
        ExtentCache cache(env(), folder / "cache", double(kBudget) * 1e-9, quick_tuning());
        cache.use(object + std::to_string(round));
        for (uint64_t i = 0; i < 400; ++i) write(cache, object + std::to_string(round), i, 500 - i);
      }
    });
  for (std::thread& writer : writers) writer.join();
  ended = true;
  watcher.join();
  EXPECT_LE(most, kBudget);
  EXPECT_LE(most_counted, kBudget - kBudget / 64);
  EXPECT_GT(most_counted, kBudget / 2);
}

TEST_F(StoreSharedCache, WhatAKilledProcessWroteIsCounted) {
  const auto cache = cache_of(4);
  cache->use("a");
  write(*cache, "a", 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const CacheSpace space(env(), folder / "cache");
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  std::string left;
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    if (entry.is_directory()) left = entry.path();
  testing::write_file(left + "/.new-1-1.0", std::string(5'000, 'x'));
  testing::write_file(left + "/ffff-3d8", std::string(kLength + 16, 'x'));
  for (uint64_t i = 1; i < 9; ++i) write(*cache, "a", i);
  EXPECT_EQ(count(), 4u);
  EXPECT_EQ(count(".new-"), 0u);
}

TEST_F(StoreSharedCache, ListsAreCounted) {
  const auto cache = cache_of(4, env(), 2);
  const std::vector<std::byte> list(3 * 4'096);
  const std::string name(16, 'a'), other(16, 'b');
  EXPECT_TRUE(cache->keep_list(name, list));
  EXPECT_TRUE(cache->keep_list(name, list)) << "it replaces the first";
  cache->use("a");
  for (uint64_t i = 0; i < 4; ++i) write(*cache, "a", i);
  EXPECT_EQ(count(), 2u) << "the list and a range";
  EXPECT_FALSE(cache->keep_list(other, list));
  const auto later = cache_of(4, env(), 2);
  later->use("b");
  later->use_list(name);  // else it would make room
  write(*later, "b", 0);
  write(*later, "b", 1);
  EXPECT_EQ(count(), 2u);
}

// Deletes the folder just before it is listed, or a file in it is renamed.
class DeletingEnv : public FaultEnv {
 public:
  explicit DeletingEnv(const std::string& folder) : FaultEnv(env()), folder_(folder) {}
  void rename(const std::string& from, const std::string& to) override {
    if (times > 0) {
      --times;
      fs::remove_all(folder_);
    }
    FaultEnv::rename(from, to);
  }
  std::vector<FileInfo> list(const std::string& path) override {
    if (listed_times > 0) {
      --listed_times;
      fs::remove_all(folder_);
    }
    return FaultEnv::list(path);
  }
  int times = 0, listed_times = 0;

 private:
  const std::string folder_;
};

TEST_F(StoreSharedCache, ADeletedFolderIsMadeAgainAtOnce) {
  DeletingEnv files(folder / "cache");
  const auto one = cache_of(100, files), other = cache_of(100);
  one->use("a");
  other->use("a");
  write(*one, "a", 0);
  write(*other, "a", 1);
  files.times = 2;
  write(*one, "a", 2);
  EXPECT_FALSE(has(*one, "a", 0));
  EXPECT_TRUE(has(*one, "a", 2));
  write(*other, "a", 3);
  fs::remove_all(folder / "cache");
  write(*one, "a", 4);
  EXPECT_TRUE(has(*other, "a", 4));
  EXPECT_EQ(count(), 1u);
  files.times = 100;  // it is deleted again and again
  write(*one, "a", 5);
  files.times = 0;
  write(*one, "a", 6);
  EXPECT_TRUE(has(*one, "a", 6));
}

TEST_F(StoreSharedCache, AFolderThatIsDeletedWhileItIsOpenedIsMadeAgain) {
  DeletingEnv files(folder / "cache");
  files.listed_times = 2;
  const auto cache = cache_of(100, files);
  cache->use("a");
  write(*cache, "a", 0);
  EXPECT_TRUE(has(*cache, "a", 0)) << "else it is not used for a minute";
}

TEST_F(StoreSharedCache, ADiskThatCannotBeExaminedIsNoError) {
  FaultEnv files(env());
  const auto cache = cache_of(4, files);
  cache->use("a");
  write(*cache, "a", 0);
  files.inject({.match = {FileOp::kExamine, "cache"}, .error = ENOTCONN});
  EXPECT_FALSE(cache->plan("a", kLength, kLength, ReadAdvice::kUnknown));
  EXPECT_FALSE(has(*cache, "a", 0));
  files.clear();
  EXPECT_TRUE(has(*cache, "a", 0));

  const auto other = cache_of(4, files);
  other->use("b");
  files.inject({.match = {FileOp::kRename, "cache"}});
  files.inject({.match = {FileOp::kExamine, ".new-"}, .error = ENOTCONN});
  write(*other, "b", 0);
  EXPECT_FALSE(has(*other, "b", 0));
}

// All but the file with the count of their bytes.
TEST_F(StoreSharedCache, DeletedRangesMakeRoom) {
  FaultEnv files(env());
  files.use_fake_clock();
  const auto cache = cache_of(4, files);
  cache->use("a");
  for (uint64_t i = 0; i < 4; ++i) write(*cache, "a", i);
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    if (entry.is_directory()) fs::remove_all(entry);
  EXPECT_FALSE(has(*cache, "a", 0));
  files.sleep_ns(20'000'000'000);
  for (uint64_t i = 4; i < 9; ++i) write(*cache, "a", i);
  EXPECT_EQ(count(), 4u);
}

// Single ranges are evicted then, since the run may use the others.
TEST_F(StoreSharedCache, ASmallerBudgetIsKeptFromTheStart) {
  {
    const auto cache = cache_of(10);
    cache->use("a");
    for (uint64_t i = 0; i < 10; ++i) write(*cache, "a", i);
  }
  cache_of(9);
  EXPECT_EQ(count(), 9u);
}

// Does something just before a folder is removed, or after so many lists of folders.
class MeanwhileEnv : public FaultEnv {
 public:
  MeanwhileEnv() : FaultEnv(env()) {}
  void remove_tree(const std::string& path) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    FaultEnv::remove_tree(path);
  }
  std::vector<FileInfo> list(const std::string& path) override {
    if (while_listing && lists-- == 0) std::exchange(while_listing, nullptr)();
    return FaultEnv::list(path);
  }
  std::function<void()> meanwhile, while_listing;
  int lists = 0;
};

TEST_F(StoreSharedCache, AnObjectThatIsUsedWhileItIsEvictedStays) {
  {
    const auto first = cache_of(4);
    first->use("a");
    for (uint64_t i = 0; i < 4; ++i) write(*first, "a", i);
  }
  MeanwhileEnv files;
  const auto other = cache_of(100), one = cache_of(4, files);
  one->use("b");
  files.meanwhile = [&] {
    other->use("a");
    EXPECT_FALSE(has(*other, "a", 0));
  };
  write(*one, "b", 0);
  write(*other, "a", 1);
  EXPECT_FALSE(files.meanwhile) << "a was evicted";
  EXPECT_TRUE(has(*other, "a", 1));
  EXPECT_TRUE(has(*one, "b", 0));
  EXPECT_EQ(count(".user-"), 2u);
}

TEST_F(StoreSharedCache, OtherThreadsUseItWhileItIsCounted) {
  {
    const auto ended = cache_of(5, env(), 3);
    for (const std::string object : {"b", "c"}) {
      ended->use(object);
      for (uint64_t i = 0; i < 2; ++i) write(*ended, object, i);
    }
  }
  MeanwhileEnv files;
  const auto cache = cache_of(5, files, 3);
  cache->use("a");
  { const CacheSpace unknown(env(), folder / "cache"); }  // as of a process that was killed
  std::future<void> used;
  bool is_in_time = false;
  files.lists = 2;  // of the folder and of one object
  files.while_listing = [&] {
    used = std::async(std::launch::async, [&] {
      for (const std::string object : {"b", "c"}) cache->use(object);
      EXPECT_TRUE(cache->plan("b", 0, kLength, 1));
      EXPECT_TRUE(has(*cache, "b", 0));
    });
    is_in_time = used.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  };
  write(*cache, "a", 0);
  EXPECT_TRUE(is_in_time);
  ASSERT_TRUE(used.valid()) << "nothing was counted";
  used.get();
  write(*cache, "a", 1);
  for (const std::string object : {"b", "c"})
    for (uint64_t i = 0; i < 2; ++i) EXPECT_TRUE(has(*cache, object, i)) << "it is in use by now";
  EXPECT_FALSE(has(*cache, "a", 1));
}

}  // namespace
}  // namespace saturate
