// Segmented JPEGs of a shard: over HTTP, only the rows that a crop needs are requested.
#include <gtest/gtest.h>

#include "data/crop_rows.h"
#include "data/export.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::StoreServer;
using testing::TempDir;

constexpr int kRowSamples = 26;

AugmentOptions row_crops() {
  AugmentOptions augment;
  augment.size = 40;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

LoaderOptions row_loader(int threads, DecodeMode decode = DecodeMode::kFast) {
  LoaderOptions options;
  options.batch = 4;
  options.threads = threads;
  options.prefetch = 2;
  options.seed = 3;
  options.type = PixelType::kUint8;
  options.decode = decode;
  return options;
}

// A shard of JPEGs, one with a long comment in its header, and one of an image that is not split.
class StoreRows : public ::testing::Test {
 protected:
  StoreRows() {
    for (int i = 0; i < kRowSamples - 1; ++i) {
      const testing::JpegKind kind{"", JCS_YCbCr, 1 + i % 2, 1 + i % 4 / 3, i % 5 == 0};
      std::string file =
          testing::to_text(encode_as(testing::test_picture(480 - 7 * i, 560 - 5 * i), kind, 95));
      if (i == 7) file.insert(2, "\xff\xfe\x20\x02" + std::string(0x2000, 'c'));
      testing::write_file(folder / ("set/a/" + std::to_string(10 + i) + ".jpg"), file);
    }
    testing::write_file(folder / "set/b/exif.jpg",
                        testing::to_text(testing::golden_input("exif_6.jpg")));
    PackOptions options;
    options.out = "shard:" + (folder / "s.shard");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "set")), options);
    local = open_dataset(env(), options.out);
    server.put("/s.shard", testing::read_text(folder / "s.shard"));
    open_store({});
  }

  void open_store(const StoreOptions& options) {
    StoreTuning tuning = quick_tuning();
    tuning.request_bytes = 0;        // a request costs nothing
    tuning.merged_gap = 0;           // no byte between two samples is fetched
    tuning.second_least_s = 1'000;   // no second requests
    tuning.ahead_bytes = 1'000'000;  // a few samples
    store = std::make_shared<ObjectStore>(env(), options, tuning);
    StoreEnv with_store(env(), store);
    far = open_dataset(with_store, "shard:" + server.url("/s.shard"));
    opening = server.asks().size();
  }
  // Bytes that requests have asked for since the shard was opened.
  uint64_t asked() const {
    const auto asks = server.asks();
    uint64_t bytes = 0;
    for (size_t i = opening; i < asks.size(); ++i) bytes += asks[i].length();
    return bytes;
  }
  // The bytes that an epoch's crop of a sample needs, and its share of the image's rows.
  std::pair<uint64_t, double> needed(const Dataset& data, const LoaderOptions& options,
                                     uint32_t epoch, uint32_t index) const {
    const AugmentOptions augment = row_crops();
    CropRows rows(data, options, augment);
    rows.begin(epoch);
    const ImageRows part = rows.choose(index);
    Sample sample;
    data.read(index, sample);
    const uint64_t size = sample.bytes.size();
    if (part.is_all()) return {size, 1};
    const uint64_t head = segment_head_bytes(sample.width, sample.height, size);
    const std::span bytes(sample.bytes);
    return {head + bytes_of_rows(bytes.first(head), size, sample.height, part).length,
            double(part.end - part.first) / sample.height};
  }

  TempDir folder;
  StoreServer server;
  std::unique_ptr<Dataset> local, far;
  std::shared_ptr<ObjectStore> store;
  size_t opening = 0;
};

std::string pixels_of(const Dataset& data, const LoaderOptions& options) {
  return testing::epochs_of(data, options, row_crops());
}

TEST_F(StoreRows, PixelsEqualThoseOfTheLocalShardForFewerBytes) {
  for (const DecodeMode decode : {DecodeMode::kFast, DecodeMode::kExact}) {
    const uint64_t before = asked();
    EXPECT_EQ(pixels_of(*far, row_loader(3, decode)), pixels_of(*local, row_loader(1, decode)));
    const uint64_t received = asked() - before;
    uint64_t expected = 0, whole = 0;
    double share = 0;
    StoreEnv with_store(env(), store);
    const auto other = open_dataset(with_store, "shard:" + server.url("/s.shard"));
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
      for (uint32_t i = 0; i < kRowSamples; ++i) {
        const auto [bytes, rows] = needed(*other, row_loader(1, decode), epoch, i);
        expected += bytes;
        whole += local->bytes(i);
        share += rows * double(local->bytes(i));
      }
    }
    EXPECT_EQ(received, expected) << "each range once, and no other";
    // Heads of 3 KB, and rows of segments that the crop touches.
    EXPECT_LT(double(received), share + 0.15 * double(whole));
    EXPECT_LT(share, 0.8 * double(whole)) << "this tests little";
    opening = server.asks().size();
  }
}

TEST_F(StoreRows, WhatIsReadDoesNotDependOnFailures) {
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    RandomStream random(5, 0, ask.number, RandomUse::kSynthetic);
    if (!random.bernoulli(0.1)) return;
    if (random.bernoulli(0.5))
      answer = {503, {}, ""};
    else
      answer.claimed = answer.body.size() + 10;
  });
  EXPECT_EQ(pixels_of(*far, row_loader(3)), pixels_of(*local, row_loader(1)));
  EXPECT_GT(store->counts().retries, 0u);
}

// Rows that the next epoch's crops need are chosen, and fetched once, before it begins.
TEST_F(StoreRows, PartsAreFetchedBeforeTheirEpochBegins) {
  LoaderOptions options = row_loader(3);
  const std::string here = pixels_of(*local, options);
  options.epochs = 2;
  StoreEnv with_store(env(), store);
  const auto other = open_dataset(with_store, "shard:" + server.url("/s.shard"));
  uint64_t expected[2] = {};
  for (uint32_t epoch = 0; epoch < 2; ++epoch)
    for (uint32_t i = 0; i < kRowSamples; ++i)
      expected[epoch] += needed(*other, options, epoch, i).first;
  opening = server.asks().size();
  {
    Loader loader(*far, options, row_crops());
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
      loader.start_epoch(epoch);
      for (Batch batch; loader.next(batch);) continue;
      EXPECT_TRUE(testing::wait_for([&] { return asked() > expected[0]; })) << epoch;
    }
  }
  const uint64_t both = expected[0] + expected[1];
  EXPECT_EQ(asked(), both) << "each range once, and no other";
  EXPECT_EQ(pixels_of(*far, options), here);
  EXPECT_EQ(asked(), 2 * both);
}

TEST_F(StoreRows, ASplitReadsPartsToo) {
  StoreEnv with_store(env(), store);
  const auto split = open_dataset(with_store, "split:train,1/5,shard:" + server.url("/s.shard"));
  const auto here = open_dataset(env(), "split:train,1/5,shard:" + (folder / "s.shard"));
  opening = server.asks().size();
  EXPECT_EQ(pixels_of(*split, row_loader(2)), pixels_of(*here, row_loader(1)));
  uint64_t whole = 0;
  for (size_t i = 0; i < here->size(); ++i) whole += 2 * here->bytes(i);
  EXPECT_LT(asked(), whole * 9 / 10);
}

// A hundred images of a source that is far away.
class FarImages : public Dataset {
 public:
  size_t size() const override { return 100; }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t, Sample&) const override {}
  uint64_t bytes(size_t) const override { return 1000; }
  uint64_t look_ahead() const override { return 1'000'000; }
  uint64_t request_bytes() const override { return a_request; }
  ImageSize size_of_parts(size_t) const override { return {500, 400}; }
  uint64_t a_request = UINT64_MAX;

 private:
  const std::vector<std::string> classes_ = {"a"};
};

TEST(CropRowChoice, ChangesWithTheLinkDuringAnEpochButNotForAnImage) {
  FarImages data;
  const LoaderOptions options = row_loader(1);
  const AugmentOptions augment = row_crops();
  CropRows rows(data, options, augment);
  rows.begin(0);
  EXPECT_TRUE(rows.choose(0).is_all());  // nothing is known of the link
  data.a_request = 0;
  int parts = 0;
  for (uint32_t i = 1; i < 100; ++i) {
    const ImageRows chosen = rows.choose(i), read = rows.of(i);
    EXPECT_EQ(std::pair(read.first, read.end), std::pair(chosen.first, chosen.end));
    parts += !read.is_all();
  }
  EXPECT_GT(parts, 50);
  EXPECT_TRUE(rows.choose(0).is_all());
  data.a_request = 999;  // a crop saves less
  rows.begin(1);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(rows.choose(i).is_all());
}

// docs/data.md states these shares, from a simulation.
TEST(CropRowChoice, ThreeQuartersOfAPhotographsRowsAreNeeded) {
  AugmentOptions augment = row_crops();
  EXPECT_NEAR(mean_crop_rows(augment), 0.72, 0.03);
  augment.crop = CropKind::kCenter;
  EXPECT_EQ(mean_crop_rows(augment), 1);
  FarImages in_segments;
  EXPECT_EQ(crop_share_of(in_segments, row_crops()), 1);
  const std::string jpeg = testing::noise_jpeg(16, 16, 0), png(jpeg.size(), 'x');
  const double share = crop_share_of(testing::MemoryDataset({jpeg, jpeg}), row_crops());
  EXPECT_LT(share, 0.8);
  EXPECT_EQ(crop_share_of(testing::MemoryDataset({png}), row_crops()), 1) << "no JPEG";
  EXPECT_NEAR(crop_share_of(testing::MemoryDataset({jpeg, png}), row_crops()), (share + 1) / 2,
              1e-9);
}

// Local shards beside far ones are read whole: their samples' checksums are checked.
TEST_F(StoreRows, OnlyFarShardsAreReadInParts) {
  StoreEnv with_store(env(), store);
  const std::string here = folder / "s.shard", there = server.url("/s.shard");
  for (const auto& [first, second] : {std::pair(here, there), std::pair(there, here)}) {
    const auto both = open_dataset(with_store, "shard:" + first + "," + second);
    EXPECT_EQ(both->request_bytes(), 0u);
    const size_t local_at = first == here ? 0 : kRowSamples;
    const size_t far_at = kRowSamples - local_at;
    EXPECT_FALSE(both->size_of_parts(local_at).is_set());
    EXPECT_TRUE(both->size_of_parts(far_at).is_set());
  }
}

// Neighbours become one request, and caches serve whole samples again.
TEST_F(StoreRows, WholeSamplesAreReadInOrderAndForACache) {
  uint64_t whole = 0;
  for (size_t i = 0; i < far->size(); ++i) whole += far->bytes(i);
  LoaderOptions options = row_loader(2);
  options.shuffle.mode = ShuffleMode::kNone;
  EXPECT_EQ(pixels_of(*far, options), pixels_of(*local, options));
  EXPECT_EQ(asked(), 2 * whole);
  EXPECT_EQ(
      cache_dataset(std::move(far), {CacheMode::kRam, CacheForm::kEncoded, 1})->request_bytes(),
      UINT64_MAX);
  open_store({folder / "cache", 1, 60});
  EXPECT_EQ(far->request_bytes(), UINT64_MAX);
  EXPECT_EQ(pixels_of(*far, row_loader(2)), pixels_of(*local, row_loader(1)));
}

TEST_F(StoreRows, AnAbandonedEpochWithdrawsBothRanges) {
  testing::expect_withdrawn(*far, row_loader(2), row_crops(), 30, server, "/s.shard",
                            kRowSamples - 2);
}

// A damaged table: the whole sample is read, and its checksum is wrong.
TEST_F(StoreRows, ADamagedTableIsReported) {
  std::string text = testing::read_text(folder / "s.shard");
  Sample sample;
  local->read(3, sample);
  const size_t at = text.find(testing::to_text(std::span(sample.bytes).first(200)));
  ASSERT_NE(at, std::string::npos);
  text[at + 20] = char(text[at + 20] ^ 1);
  server.put("/s.shard", text);
  const Error error = error_of([&] { pixels_of(*far, row_loader(2)); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("wrong checksum"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
