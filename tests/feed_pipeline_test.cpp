// Batches through a pipeline of streams: bit-equal to those without it, however its stages are
// delayed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "feed/batch_pipeline.h"
#include "saturate/feed.h"
#include "tests/data_testing.h"
#include "trace/stream_clock.h"

namespace saturate {
namespace {

using testing::error_of;

struct Fed {
  std::vector<DeviceBatch> batches;
  std::set<std::string> stages;  // that ran concurrently
};

std::vector<at::Tensor> encode(const at::Tensor& images) {
  return {images * 2, images.mean({2, 3})};
}

Toggle copies(bool on) {
  return on ? Toggle::kOn : Toggle::kOff;
}

// Two epochs of images with masks, and effects that a stage may finish.
Fed feed(const PipelineOptions& stages, bool masks, int delay_ms = 0,
         StreamClock* clock = nullptr) {
  const auto data = open_dataset(
      Env::posix(), masks ? "synth:size=16,count=44,masks=true" : "synth:size=16,count=44");
  LoaderOptions options;
  options.batch = 8;
  options.threads = 2;
  options.masks = masks;
  options.output = BatchOutput::kUnfinished;
  AugmentOptions augment;
  augment.size = 12;
  augment.crop = CropKind::kRandomResized;
  augment.rotate = 15;
  augment.contrast = 0.4;
  augment.mixup = masks ? 0 : 0.5;
  Loader loader(*data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger, augment, {}, clock);
  Fed fed;
  std::mutex mutex;
  if (stages.any()) {
    PipelineSetup setup{stages};
    setup.encode = encode;
    setup.before = [&, calls = 0](const char* stage) mutable {
      int delay = 0;
      {
        std::lock_guard lock(mutex);
        fed.stages.insert(stage);
        delay = delay_ms * (++calls % 3);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    };
    feeder.use_pipeline(std::move(setup));
  }
  for (uint32_t epoch = 0; epoch < 2; ++epoch) {
    feeder.start_epoch(epoch);
    for (DeviceBatch batch; feeder.next(batch);) {
      DeviceBatch kept = batch;
      kept.images = batch.images.clone();
      fed.batches.push_back(kept);
    }
  }
  return fed;
}

TEST(Pipeline, ReturnsTheBatchesOfTheSerialLoop) {
  for (const bool masks : {false, true}) {
    const Fed expected = feed({}, masks);
    ASSERT_EQ(expected.batches.size(), 12u);
    for (int set = 1; set < 8; ++set) {
      const PipelineOptions stages{copies((set & 1) != 0), (set & 2) != 0, (set & 4) != 0,
                                   /*check=*/true};
      const Fed found = feed(stages, masks, /*delay_ms=*/2);
      EXPECT_EQ(found.stages.contains("copy"), true);
      EXPECT_EQ(found.stages.contains("encode"), stages.encoder);
      ASSERT_EQ(found.batches.size(), expected.batches.size()) << set;
      for (size_t i = 0; i < expected.batches.size(); ++i) {
        const DeviceBatch &a = expected.batches[i], &b = found.batches[i];
        EXPECT_TRUE(at::equal(a.images, b.images)) << set << " " << i;
        EXPECT_TRUE(at::equal(a.labels, b.labels)) << set << " " << i;
        EXPECT_EQ(a.lambda, b.lambda);
        EXPECT_EQ(a.global_batch, b.global_batch);
        EXPECT_EQ(b.features.size(), stages.encoder ? 2u : 0u);
        if (stages.encoder) {
          EXPECT_TRUE(at::equal(b.features[0], a.images * 2));
        }
      }
    }
  }
}

// Streams of a device's CPU version: work is done when it is enqueued.
class CountedMark : public TimeMark {
 public:
  explicit CountedMark(std::atomic<int>& placed) : placed_(placed) {}
  void place() override { at_ = ++placed_; }
  bool reached() const override { return true; }
  double seconds_since(const TimeMark& earlier) const override {
    return at_ - static_cast<const CountedMark&>(earlier).at_;
  }

 private:
  std::atomic<int>& placed_;
  int at_ = 0;
};

TEST(Pipeline, AClockRecordsEachStreamsWork) {
  const std::vector<std::pair<PipelineOptions, std::string>> cases = {
      {{}, "step"},
      {{Toggle::kOn, false, false, false}, "copy step"},
      {{Toggle::kOff, true, false, false}, "augment"},
      {{Toggle::kOn, true, false, false}, "augment copy"},
      {{Toggle::kOn, true, true, false}, "augment copy encoder"}};
  for (const auto& [stages, expected] : cases) {
    std::atomic<int> placed{0};
    StreamClock clock([&] { return std::make_unique<CountedMark>(placed); });
    feed(stages, false, 0, &clock);
    std::string streams;
    for (const StreamTime& time : clock.times()) {
      streams += (streams.empty() ? "" : " ") + time.stream;
      EXPECT_GE(time.busy_s, 12) << "a piece for each batch";
    }
    EXPECT_EQ(streams, expected);
  }
}

TEST(Pipeline, MaskLabelsAreClassesOrIgnored) {
  const Fed fed = feed({}, true);
  ASSERT_EQ(fed.batches.size(), 12u);
  for (const DeviceBatch& batch : fed.batches) {
    ASSERT_EQ(batch.labels.sizes(), (at::IntArrayRef{batch.count(), 12, 12}));
    EXPECT_EQ(batch.labels.scalar_type(), at::kLong);
    EXPECT_GE(batch.labels.min().item<int64_t>(), kIgnoredLabel);
    EXPECT_EQ(batch.labels.eq(255).sum().item<int64_t>(), 0);
    EXPECT_GE(batch.labels.max().item<int64_t>(), 0) << "not all of them are ignored";
    EXPECT_LE(batch.labels.max().item<int64_t>(), 10);
  }
}

class SmallFeed {
 public:
  SmallFeed() : data_(open_dataset(Env::posix(), "synth:size=8,count=64")), ledger_(Env::posix()) {
    augment_.size = 8;
    options_.batch = 4;
    loader_ = std::make_unique<Loader>(*data_, options_, augment_);
    feeder_ = std::make_unique<Feeder>(*loader_, at::kCPU, true, ledger_, augment_);
  }
  Feeder& feeder() { return *feeder_; }
  // The loader has more than the next requested batch.
  void wait() const {
    while (loader_->ready() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::unique_ptr<Dataset> data_;
  LoaderOptions options_;
  AugmentOptions augment_;
  Ledger ledger_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Feeder> feeder_;
};

// While the consumer uses the first batch, the encoder is at a later one.
TEST(Pipeline, RunsAheadOfItsConsumer) {
  SmallFeed feed;
  std::atomic<int> encoded{0};
  PipelineSetup setup{{.encoder = true}};
  setup.encode = [&](const at::Tensor& images) {
    ++encoded;
    return std::vector<at::Tensor>{images};
  };
  feed.feeder().use_pipeline(std::move(setup));
  feed.feeder().start_epoch(0);
  DeviceBatch batch;
  for (int i = 0; i < 4; ++i) {
    feed.wait();
    feed.feeder().next(batch);
  }
  feed.feeder().settle();
  EXPECT_GT(encoded, 4);
  EXPECT_LE(encoded, 4 + 2);
}

TEST(Pipeline, AStagesErrorIsThrownWithItsBatch) {
  SmallFeed feed;
  std::atomic<int> encoded{0};
  PipelineSetup setup{{.encoder = true}};
  setup.encode = [&](const at::Tensor& images) {
    if (++encoded == 3) throw std::runtime_error("no encoder");
    return std::vector<at::Tensor>{images};
  };
  feed.feeder().use_pipeline(std::move(setup));
  feed.feeder().start_epoch(0);
  DeviceBatch batch;
  EXPECT_TRUE(feed.feeder().next(batch));
  EXPECT_TRUE(feed.feeder().next(batch));
  EXPECT_THROW(feed.feeder().next(batch), std::runtime_error);
  feed.feeder().stop();
}

// Its reads wait for release().
class HangingDataset : public testing::MemoryDataset {
 public:
  HangingDataset() : MemoryDataset(std::vector<std::string>(4, testing::noise_jpeg(8, 8, 1))) {}
  void read(size_t index, Sample& out) const override {
    reading_ = true;
    reading_.notify_all();
    released_.wait();
    MemoryDataset::read(index, out);
  }
  void wait_for_read() const { reading_.wait(false); }
  void release() { gate_.set_value(); }

 private:
  mutable std::atomic<bool> reading_{false};
  std::promise<void> gate_;
  std::shared_future<void> released_ = gate_.get_future().share();
};

TEST(Pipeline, CanBeDestroyedWhileTheLoaderHangs) {
  HangingDataset data;
  LoaderOptions options;
  options.batch = 4;
  options.wait_limit = std::chrono::milliseconds(5);
  AugmentOptions augment;
  augment.size = 8;
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger, augment);
  const auto model = std::make_shared<int>(0);
  PipelineSetup setup{{.encoder = true}};
  setup.encode = [model](const at::Tensor& images) {
    ++*model;
    return std::vector<at::Tensor>{images};
  };
  feeder.use_pipeline(std::move(setup));
  feeder.start_epoch(0);
  data.wait_for_read();
  EXPECT_EQ(error_of([&] { feeder.stop(); }).kind(), ErrorKind::kRun);
  static_assert(noexcept(feeder.drop_pipeline()));
  feeder.drop_pipeline();
  EXPECT_EQ(model.use_count(), 1) << "no stage owns the model any more";
  data.release();
}

// A broken sample ends the epoch at the same batch as without a pipeline.
TEST(Pipeline, ReturnsAllBatchesBeforeABrokenSample) {
  std::vector<std::string> files;
  for (uint64_t i = 0; i < 12; ++i) files.push_back(testing::noise_jpeg(8, 8, i));
  files[9] = "broken";
  const testing::MemoryDataset data(std::move(files));
  LoaderOptions options;
  options.batch = 3;
  options.shuffle.mode = ShuffleMode::kNone;
  AugmentOptions augment;
  augment.size = 8;
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger, augment);
  feeder.use_pipeline({{.copy = Toggle::kOn}});
  feeder.start_epoch(0);
  DeviceBatch batch;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(feeder.next(batch)) << i;
  EXPECT_NE(std::string(error_of([&] { feeder.next(batch); }).what()).find("memory:9"),
            std::string::npos);
}

}  // namespace
}  // namespace saturate
