// The loader's functions other than next(): waiting with a limit, labels of another model.
#include <gtest/gtest.h>

#include <future>

#include "saturate/data/error.h"
#include "saturate/data/loader.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using std::chrono::minutes;
using std::chrono::nanoseconds;
using testing::error_of;
using testing::MemoryDataset;

LoaderOptions plain_options(size_t batch) {
  LoaderOptions options;
  options.batch = batch;
  options.train = false;
  options.shuffle.mode = ShuffleMode::kNone;
  return options;
}

AugmentOptions of_8_pixels() {
  AugmentOptions augment;
  augment.size = 8;
  return augment;
}

std::vector<std::string> images_of_8_pixels(size_t count) {
  return std::vector<std::string>(count, testing::noise_jpeg(8, 8, 1));
}

// Returns nothing before open() is called.
class GatedDataset : public MemoryDataset {
 public:
  explicit GatedDataset(std::vector<std::string> files) : MemoryDataset(std::move(files)) {}
  void read(size_t index, Sample& out) const override {
    opened_.wait();
    MemoryDataset::read(index, out);
  }
  void open() { gate_.set_value(); }

 private:
  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future().share();
};

TEST(LoaderWait, ForAStoreIsLongerThanTheStoresOwn) {
  StoreOptions store;
  EXPECT_EQ(wait_limit_for(store), LoaderOptions().wait_limit);
  store.timeout_s = 3'600;
  EXPECT_GT(wait_limit_for(store), std::chrono::seconds(3'600));
}

TEST(LoaderWait, ATimeoutTakesNoBatch) {
  GatedDataset data(images_of_8_pixels(4));
  Loader loader(data, plain_options(2), of_8_pixels());
  loader.start_epoch(0);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(loader.wait(nanoseconds(1)));
  data.open();
  Batch batch;
  for (size_t place = 0; place < 2; ++place) {
    EXPECT_TRUE(loader.wait(minutes(5)));
    EXPECT_TRUE(loader.wait(nanoseconds(1))) << "the batch is still there";
    ASSERT_TRUE(loader.next(batch));
    EXPECT_EQ(batch.place, place);
  }
  EXPECT_TRUE(loader.wait(nanoseconds(1))) << "next() can report the end at once";
  EXPECT_FALSE(loader.next(batch));
}

TEST(LoaderWait, EndsThoughStorageHangs) {
  GatedDataset data(images_of_8_pixels(70));
  LoaderOptions options = plain_options(7);
  options.threads = 2;
  options.wait_limit = std::chrono::milliseconds(5);
  Loader loader(data, options, of_8_pixels());
  loader.start_epoch(0);
  Batch batch;
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(error_of([&] { loader.next(batch); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(error_of([&] { loader.start_epoch(1); }).kind(), ErrorKind::kRun);
  data.open();
}

TEST(LoaderWait, DoesNotWaitAfterAFailure) {
  const MemoryDataset data({"no image", "nor this"});
  Loader loader(data, plain_options(1), of_8_pixels());
  loader.start_epoch(0);
  Batch batch;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(loader.wait(minutes(5)));
    EXPECT_EQ(error_of([&] { loader.next(batch); }).kind(), ErrorKind::kData);
  }
}

TEST(LoaderLabels, AreReturnedWithTheModelsNumbers) {
  const MemoryDataset data(images_of_8_pixels(4), {"bee", "cat"});
  LoaderOptions options = plain_options(4);
  options.labels = {1, 7};
  Loader loader(data, options, of_8_pixels());
  loader.start_epoch(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(testing::all_of(batch, &BatchSample::label), (std::vector<int64_t>{1, 7, 1, 7}));
}

}  // namespace
}  // namespace saturate
