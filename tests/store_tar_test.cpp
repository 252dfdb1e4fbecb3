// The bytes that an archive costs: its headers are read in windows, and its samples once an epoch.
#include <gtest/gtest.h>

#include "data/export.h"
#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::HttpAsk;
using testing::StoreServer;
using testing::TempDir;

constexpr int kTarImages = 60;
constexpr uint64_t kHeaderWindow = 4 << 10, kGap = 1 << 10;  // a header and the padding before it

class StoreTar : public ::testing::Test {
 protected:
  StoreTar() {
    for (int i = 0; i < kTarImages; ++i)
      testing::write_file(
          folder / ("images/" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg"),
          testing::noise_jpeg(240, 240, uint64_t(i)));
    PackOptions packing;
    packing.out = "tar:" + (folder / "a.tar");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), packing);
    archive = testing::read_text(folder / "a.tar");
    server.put("/a.tar", archive);
  }
  // Opens the archive; `request_bytes`: as much as a request costs.
  std::unique_ptr<Dataset> open(uint64_t request_bytes) {
    StoreTuning tuning = testing::quick_tuning();
    tuning.second_least_s = 1'000;  // each range is one request
    tuning.request_bytes = request_bytes;
    StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), StoreOptions(), tuning));
    return open_dataset(with_store, "tar:" + server.url("/a.tar"));
  }
  // Bytes of the requests since the last call.
  uint64_t take_bytes() {
    const auto asks = server.asks();
    uint64_t sum = 0;
    for (; seen < asks.size(); ++seen)
      sum += std::min<uint64_t>(asks[seen].last + 1, archive.size()) - asks[seen].first;
    return sum;
  }

  TempDir folder;
  std::string archive;
  StoreServer server;
  size_t seen = 0;
};

TEST_F(StoreTar, OpeningReadsAWindowForEachHeader) {
  const auto data = open(0);
  ASSERT_EQ(data->size(), size_t(kTarImages));
  EXPECT_GT(data->bytes(0), 32u << 10) << "headers are not near each other";
  EXPECT_LE(take_bytes(), (kTarImages + 4) * kHeaderWindow);  // with its end
}

TEST_F(StoreTar, OpeningReadsNoByteTwiceIfRequestsCostMoreThanSamples) {
  ASSERT_EQ(open(1 << 20)->size(), size_t(kTarImages));
  EXPECT_LE(take_bytes(), archive.size() + 512);
}

TEST_F(StoreTar, AnEpochReadsItsSamplesAndWhatLiesBetweenNeighbours) {
  const auto data = open(0);
  uint64_t payload = 0;
  for (size_t i = 0; i < data->size(); ++i) payload += data->bytes(i);
  take_bytes();
  for (const ShuffleMode shuffle : {ShuffleMode::kNone, ShuffleMode::kBlock, ShuffleMode::kFull}) {
    LoaderOptions options;
    options.batch = 8;
    options.threads = 3;
    options.shuffle = {shuffle, 4};
    options.type = PixelType::kUint8;
    AugmentOptions augment;
    augment.size = 8;
    augment.crop = CropKind::kRandomResized;
    size_t count = 0;
    {
      Loader loader(*data, options, augment);
      loader.start_epoch(0);
      for (Batch batch; loader.next(batch);) count += batch.count();
    }
    EXPECT_EQ(count, size_t(kTarImages));
    const uint64_t bytes = take_bytes();
    EXPECT_GE(bytes, payload);
    EXPECT_LE(bytes, payload + kTarImages * kGap) << int(shuffle);
  }
}

}  // namespace
}  // namespace saturate
