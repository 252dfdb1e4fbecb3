// Exceptions and labels of a program's own dataset.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <set>
#include <stdexcept>

#include "data/export.h"
#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;
using testing::TempDir;

constexpr size_t kOwnCount = 20, kOwnBad = 7;

// Grey images without names; `corrupt` replaces sample kOwnBad.
class OwnDataset : public Dataset {
 public:
  explicit OwnDataset(std::function<void(Sample&)> corrupt) : corrupt_(std::move(corrupt)) {}
  size_t size() const override { return kOwnCount; }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t index, Sample& out) const override {
    out.encoding = SampleEncoding::kRaw;
    out.width = out.height = 8;
    out.channels = 1;
    out.bytes.assign(64, std::byte(index));
    out.label = int64_t(index % 2);
    if (index == kOwnBad) corrupt_(out);
  }

 private:
  const std::function<void(Sample&)> corrupt_;
  const std::vector<std::string> classes_ = {"a", "b"};
};

LoaderOptions own_options(OnError on_error) {
  LoaderOptions options;
  options.batch = 4;
  options.threads = 2;
  options.on_error = on_error;
  options.names = true;
  options.type = PixelType::kUint8;
  return options;
}

AugmentOptions own_augment() {
  AugmentOptions augment;
  augment.size = 8;
  augment.crop = CropKind::kNone;
  return augment;
}

struct OwnEpoch {
  std::vector<std::string> names;
  std::vector<SkippedSample> skipped;
};

OwnEpoch read_own_epoch(const Dataset& data, OnError on_error) {
  Loader loader(data, own_options(on_error), own_augment());
  loader.start_epoch(0);
  OwnEpoch epoch;
  for (Batch batch; loader.next(batch);)
    for (const BatchSample& sample : batch.samples) epoch.names.push_back(sample.name);
  epoch.skipped = loader.skipped();
  return epoch;
}

struct CorruptSample {
  const char* what;
  std::function<void(Sample&)> corrupt;
  const char* reason;
  const char* where = "sample 7";
};

const CorruptSample kCorruptSamples[] = {
    {"an exception", [](Sample&) { throw std::runtime_error("no row 7\nand a stack"); },
     "no row 7"},
    {"one after the name",
     [](Sample& out) {
       out.name = "row.png";
       throw std::out_of_range("vector::at");
     },
     "vector::at", "sample 7, row.png"},
    {"not an exception", [](Sample&) { throw 42; },
     "the dataset threw something other than a std::exception"},
    {"an exception without words", [](Sample&) { throw std::runtime_error(""); },
     "the dataset cannot read it"},
    {"a label above", [](Sample& out) { out.label = 2; },
     "its label is 2, and there are 2 classes, numbered from 0"},
    {"a label below", [](Sample& out) { out.label = -1; },
     "its label is -1, and there are 2 classes, numbered from 0"},
    {"too few bytes", [](Sample& out) { out.bytes.resize(3); },
     "raw image of 8 x 8 x 1 has 3 bytes"},
};

TEST(OwnDatasets, AnExceptionNamesTheSampleAndMayBeSkipped) {
  for (const CorruptSample& row : kCorruptSamples) {
    SCOPED_TRACE(row.what);
    const OwnDataset data(row.corrupt);
    const Error error = error_of([&] { read_own_epoch(data, OnError::kFail); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.reason(), row.reason);
    EXPECT_EQ(error.where(), row.where);
    const OwnEpoch epoch = read_own_epoch(data, OnError::kSkip);
    EXPECT_EQ(epoch.names.size(), kOwnCount - 1);
    ASSERT_EQ(epoch.skipped.size(), 1u);
    EXPECT_EQ(epoch.skipped[0].reason, row.reason);
    EXPECT_NE(std::string(row.where).find(epoch.skipped[0].name), std::string::npos);
  }
}

TEST(OwnDatasets, SamplesWithoutANameAreNamedByIndex) {
  const OwnEpoch epoch = read_own_epoch(OwnDataset([](Sample&) {}), OnError::kFail);
  EXPECT_EQ(std::set(epoch.names.begin(), epoch.names.end()).size(), kOwnCount);
  EXPECT_TRUE(epoch.names[0].starts_with("sample ")) << epoch.names[0];
}

TEST(OwnDatasets, CanBePackedAndInspected) {
  const TempDir dir;
  const OwnDataset data(kCorruptSamples[0].corrupt);
  PackOptions options;
  options.out = "shard:" + dir.path() + "/own.shard";
  options.threads = 2;
  EXPECT_EQ(error_of([&] { pack_dataset(Env::posix(), data, options); }).where(), "sample 7");
  options.on_error = OnError::kSkip;
  EXPECT_EQ(pack_dataset(Env::posix(), data, options).skipped.size(), 1u);
}

// An exception that leaves a loader thread ends the process.
TEST(LoaderMemory, AFailedAllocationOfAThreadEndsTheEpoch) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers end the process at such an allocation";
  const OwnDataset data([](Sample&) {});
  AugmentOptions augment = own_augment();
  augment.size = 1 << 30;  // its scratch memory exceeds the address space
  LoaderOptions options = own_options(OnError::kSkip);
  const std::vector<HeldSample> held(kOwnCount, HeldSample{8, 8, 0, "held"});
  options.output = BatchOutput::kPlaces;  // its buffers have no pixels, and can be allocated
  options.held = held;
  Loader loader(data, options, augment);
  loader.start_epoch(0);
  Batch batch;
  EXPECT_THROW(loader.next(batch), std::bad_alloc);
}

}  // namespace
}  // namespace saturate
