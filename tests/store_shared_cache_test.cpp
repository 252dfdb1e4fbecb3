// Two caches of a store in one folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "store/extent_cache.h"
#include "tests/fault_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

namespace fs = std::filesystem;
using testing::env;
using testing::quick_tuning;
using testing::TempDir;

constexpr uint64_t kLength = 984, kEntry = kLength + 16;

class StoreSharedCache : public ::testing::Test {
 protected:
  // `entries`: its budget.
  std::unique_ptr<ExtentCache> cache_of(uint64_t entries, Env& files = env()) const {
    return std::make_unique<ExtentCache>(files, folder / "cache",
                                         double(entries * kEntry + 8) * 1e-9, quick_tuning());
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

  const std::shared_ptr<const std::vector<std::byte>> bytes =
      std::make_shared<const std::vector<std::byte>>(kLength, std::byte{7});
  TempDir folder;
};

// Two that began with an empty folder exceed the budget together. They notice, also if they only
// put ranges in the place of others.
TEST_F(StoreSharedCache, ReturnsToItsBudget) {
  const auto one = cache_of(16), other = cache_of(16);
  one->use("a");
  other->use("b");
  for (uint64_t i = 0; i < 16; ++i) write(*one, "a", i, 100 - i);
  for (uint64_t i = 0; i < 2; ++i) write(*other, "b", i, 1);
  EXPECT_EQ(count(), 18u);
  for (uint64_t i = 16; i < 20; ++i) write(*one, "a", i, 100 - i);
  EXPECT_EQ(count(), 16u);
}

// Does something just before a folder is removed.
class MeanwhileEnv : public FaultEnv {
 public:
  MeanwhileEnv() : FaultEnv(env()) {}
  void remove_tree(const std::string& path) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    FaultEnv::remove_tree(path);
  }
  std::function<void()> meanwhile;
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
    write(*other, "a", 1);
  };
  write(*one, "b", 0);
  EXPECT_FALSE(files.meanwhile) << "a was evicted";
  EXPECT_TRUE(has(*other, "a", 1));
  EXPECT_TRUE(has(*one, "b", 0));
  EXPECT_EQ(count(".user-"), 2u);
}

}  // namespace
}  // namespace saturate
