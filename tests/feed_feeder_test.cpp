// From the loader's batches to tensors.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "data/export.h"
#include "saturate/feed.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

// The batches of an epoch of synthetic images, as the feeder returns them.
std::vector<at::Tensor> fed(bool planar, bool channels_last) {
  const auto data = open_dataset(Env::posix(), "synth:size=9,count=20");
  LoaderOptions options;
  options.batch = 8;
  if (planar) options.output = BatchOutput::kPlanar;
  AugmentOptions augment;
  augment.size = 6;
  Loader loader(*data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, channels_last, ledger);
  loader.start_epoch(0);
  std::vector<at::Tensor> batches;
  for (DeviceBatch batch; feeder.next(batch);) batches.push_back(batch.images);
  return batches;
}

TEST(Feeder, ReturnsTheSameImagesInEitherLayout) {
  const auto expected = fed(false, true), copied = fed(false, false), planar = fed(true, false);
  ASSERT_EQ(expected.size(), 3u);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(expected[i].is_contiguous(at::MemoryFormat::ChannelsLast));
    for (const auto& found : {copied[i], planar[i]}) {
      EXPECT_TRUE(found.is_contiguous());
      EXPECT_TRUE(at::equal(found, expected[i]));
    }
  }
}

// An epoch's times of the step's thread, which only takes batches.
PhaseTimes times_of_an_epoch(const Dataset& data, bool is_away = false) {
  LoaderOptions options;
  options.batch = 8;
  AugmentOptions augment;
  augment.size = 6;
  Loader loader(data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger);
  feeder.start_epoch(0);
  const auto take_all = [&] {
    for (DeviceBatch batch; feeder.next(batch);) {
    }
  };
  if (is_away)
    EXPECT_THROW(take_all(), Error);
  else
    take_all();
  return ledger.times();
}

TEST(Feeder, TheLedgerHasTheNetworksPartOfTheWait) {
  const testing::TempDir folder;
  testing::write_folder_dataset(folder / "images", 24);
  const auto images = open_dataset(Env::posix(), "folder:" + (folder / "images"));
  PackOptions pack;
  pack.out = "shard:" + (folder / "a.shard");
  pack_dataset(Env::posix(), *images, pack);
  testing::StoreServer server;
  server.put("/a", testing::read_text(folder / "a.shard"));
  StoreEnv with_store(Env::posix(),
                      std::make_shared<ObjectStore>(Env::posix(), StoreOptions{"", 1, 1}));
  const auto far = open_dataset(with_store, "shard:" + server.url("/a"));
  server.tamper([](const testing::HttpAsk&, testing::HttpAnswer&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const PhaseTimes found = times_of_an_epoch(*far);
  EXPECT_GT(found.network_wait, found[Phase::kWait] / 4) << "the server is the only delay";
  EXPECT_LE(found.network_wait, found[Phase::kWait]);
  EXPECT_EQ(times_of_an_epoch(*images).network_wait, 0);
  server.tamper([](const testing::HttpAsk&, testing::HttpAnswer& answer) { answer.status = 503; });
  const PhaseTimes away = times_of_an_epoch(*far, /*is_away=*/true);
  EXPECT_GT(away.network_wait, 0.5);
  EXPECT_LE(away.network_wait, away[Phase::kWait]);
}

// Rounding like torch's.
TEST(Feeder, HalfPrecisionIsTheRoundedFloats) {
  const auto data = open_dataset(Env::posix(), "synth:size=24,count=40");
  AugmentOptions augment;
  augment.size = 21;
  augment.contrast = 0.3;
  augment.blur = 0.5;
  const auto all = [&](PixelType output, BatchOutput from) {
    augment.output = output;
    LoaderOptions options;
    options.batch = 16;
    options.output = from;
    options.type = output;
    Loader loader(*data, options, augment);
    Ledger ledger(Env::posix());
    Feeder feeder(loader, at::kCPU, true, ledger, augment);
    loader.start_epoch(1);
    std::vector<at::Tensor> batches;
    for (DeviceBatch batch; feeder.next(batch);) batches.push_back(batch.images.clone());
    return batches;
  };
  const auto floats = all(PixelType::kFloat32, BatchOutput::kInterleaved);
  ASSERT_EQ(floats.size(), 3u);
  for (const auto& [type, torchs] :
       {std::pair{PixelType::kBfloat16, at::kBFloat16}, {PixelType::kFloat16, at::kHalf}}) {
    for (const BatchOutput from :
         {BatchOutput::kInterleaved, BatchOutput::kPlanar, BatchOutput::kUnfinished}) {
      const auto halves = all(type, from);
      for (size_t i = 0; i < floats.size(); ++i) {
        EXPECT_EQ(halves.at(i).scalar_type(), torchs);
        EXPECT_TRUE(at::equal(halves[i], floats[i].to(torchs)))
            << "type " << torchs << ", output " << int(from) << ", batch " << i;
      }
    }
  }
}

// A GPU kernel's input, finished by its CPU version: bit-equal to the loader's own pixels.
TEST(Feeder, FinishesBytesLikeTheLoader) {
  const auto data = open_dataset(Env::posix(), "synth:size=24,count=40");
  AugmentOptions augment;
  augment.size = 20;
  augment.crop = CropKind::kRandomResized;
  augment.rotate = 20;
  augment.contrast = augment.hue = 0.3;
  augment.blur = augment.erase = 0.5;
  augment.mixup = 0.5;
  for (const bool train : {true, false}) {
    const auto all = [&](bool finish) {
      LoaderOptions options;
      options.batch = 16;
      options.train = train;
      if (!finish) options.output = BatchOutput::kUnfinished;
      Loader loader(*data, options, augment);
      Ledger ledger(Env::posix());
      Feeder feeder(loader, at::kCPU, true, ledger, augment);
      loader.start_epoch(3);
      std::vector<at::Tensor> batches;
      for (DeviceBatch batch; feeder.next(batch);) batches.push_back(batch.images.clone());
      return batches;
    };
    const auto expected = all(true), found = all(false);
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(found[i].is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(at::equal(found[i], expected[i])) << "train " << train << ", batch " << i;
    }
  }
}

TEST(Feeder, UnfinishedBatchesCanBeFinishedLater) {
  const auto data = open_dataset(Env::posix(), "synth:size=24,count=20,masks=true");
  AugmentOptions augment;
  augment.size = 20;
  augment.rotate = 20;
  augment.contrast = 0.3;
  LoaderOptions options;
  options.batch = 16;
  options.masks = true;
  for (const bool finish : {true, false}) {
    options.output = finish ? BatchOutput::kInterleaved : BatchOutput::kUnfinished;
    Loader loader(*data, options, augment);
    Ledger ledger(Env::posix());
    Feeder feeder(loader, at::kCPU, true, ledger, augment);
    std::vector<DeviceBatch> expected;
    loader.start_epoch(1);
    for (DeviceBatch batch; feeder.next(batch);) {
      expected.push_back(batch);
      expected.back().images = batch.images.clone();
    }
    ASSERT_EQ(expected.size(), 2u);
    feeder.leave_unfinished(true);
    loader.start_epoch(1);
    for (const DeviceBatch& whole : expected) {
      DeviceBatch batch;
      ASSERT_TRUE(feeder.next(batch));
      EXPECT_FALSE(batch.images.defined());
      EXPECT_EQ(batch.count(), whole.count());
      feeder.finish(batch);
      feeder.finish(batch);  // is already finished
      EXPECT_TRUE(at::equal(batch.images, whole.images)) << "finished by the loader " << finish;
      EXPECT_TRUE(at::equal(batch.labels, whole.labels));
    }
  }
}

TEST(Feeder, AHeldBatchIsReturnedEachTimeWithoutTheLoader) {
  const auto data = open_dataset(Env::posix(), "synth:size=9,count=20");
  AugmentOptions augment;
  augment.size = 6;
  LoaderOptions options;
  options.batch = 8;
  Loader loader(*data, options, augment);
  Ledger ledger(Env::posix());
  Feeder feeder(loader, at::kCPU, true, ledger);
  loader.start_epoch(0);
  DeviceBatch first, found;
  ASSERT_TRUE(feeder.next(first));
  feeder.hold(first);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(feeder.next(found));
    EXPECT_TRUE(found.images.is_same(first.images));
  }
  feeder.release();
  ASSERT_TRUE(feeder.next(found));
  EXPECT_FALSE(at::equal(found.images, first.images));
  EXPECT_EQ(found.count(), 8);
  ASSERT_TRUE(feeder.next(found));
  EXPECT_EQ(found.count(), 4);
}

}  // namespace
}  // namespace saturate
