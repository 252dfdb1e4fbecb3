#include <gtest/gtest.h>
#include <sys/resource.h>

#include <mutex>
#include <set>

#include "saturate/data/loader.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::MemoryDataset;

// Records the nice value of the threads that read it.
class NicenessDataset : public MemoryDataset {
 public:
  using MemoryDataset::MemoryDataset;
  void read(size_t index, Sample& out) const override {
    MemoryDataset::read(index, out);
    std::lock_guard lock(mutex_);
    levels_.insert(getpriority(PRIO_PROCESS, 0));
  }
  std::set<int> levels() const {
    std::lock_guard lock(mutex_);
    return levels_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::set<int> levels_;  // guarded by mutex_
};

TEST(LoaderNice, ItsThreadsHaveTheRequestedNiceValue) {
  const int own = getpriority(PRIO_PROCESS, 0);
  for (const int nice : {0, 3}) {
    const NicenessDataset dataset(std::vector<std::string>(20, testing::noise_jpeg(9, 9, 1)));
    LoaderOptions options;
    options.batch = 4;
    options.threads = 2;
    options.nice = nice;
    AugmentOptions augment;
    augment.size = 8;
    Loader loader(dataset, options, augment);
    loader.start_epoch(0);
    for (Batch batch; loader.next(batch);) {
    }
    EXPECT_EQ(dataset.levels(), std::set<int>{std::min(19, own + nice)});
  }
}

}  // namespace
}  // namespace saturate
