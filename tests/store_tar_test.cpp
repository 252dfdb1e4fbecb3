// The bytes that an archive costs: its headers are read in windows, and its samples once an epoch.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "data/export.h"
#include "data/far_members.h"
#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::HttpAnswer;
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
  // Opens the archive; `request_bytes`: as much as a request costs. `cache`: a folder.
  std::unique_ptr<Dataset> open(uint64_t request_bytes, const std::string& cache = "") {
    StoreTuning tuning = testing::quick_tuning();
    tuning.second_least_s = 1'000;  // each range is one request
    tuning.request_bytes = request_bytes;
    store = std::make_shared<ObjectStore>(env(), StoreOptions{cache, 1, 60}, tuning);
    StoreEnv with_store(env(), store);
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
  std::shared_ptr<ObjectStore> store;
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

TEST_F(StoreTar, ACacheKeepsTheSamplesThatOpeningHasRead) {
  const auto data = open(1 << 20, folder / "cache");
  EXPECT_LE(server.asks().size(), 12u) << "the windows grow as without a cache";
  store->flush();
  take_bytes();
  std::string samples, expected;
  const auto local = open_dataset(env(), "tar:" + (folder / "a.tar"));
  for (const auto* from : {&data, &local})
    for (size_t i = 0; i < (*from)->size(); ++i) {
      Sample sample;
      (*from)->read(i, sample);
      (from == &data ? samples : expected) += testing::to_text(sample.bytes);
    }
  EXPECT_EQ(samples, expected);
  EXPECT_LE(take_bytes(), archive.size() / 4) << "only those that two windows share";
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

// Zeros may be the end of an archive that is followed by another one, or damage that hides members.
TEST_F(StoreTar, ZerosAreReadAgainBeforeTheyEndAnArchive) {
  const std::string both = archive + archive;
  server.put("/a.tar", both);
  EXPECT_EQ(open(UINT64_MAX)->size(), 2u * kTarImages);
  const size_t before = server.asks().size();
  EXPECT_EQ(open(0)->size(), 2u * kTarImages);
  const size_t requests = server.asks().size() - before;
  EXPECT_GT(requests, 2u * kTarImages);
  for (size_t zeroed = 1; zeroed < requests; ++zeroed) {  // the first request is of another kind
    const auto count = std::make_shared<std::atomic<size_t>>(0);
    server.tamper([=](const HttpAsk&, HttpAnswer& answer) {
      if ((*count)++ == zeroed) answer.body.assign(answer.body.size(), '\0');
    });
    EXPECT_EQ(open(0)->size(), 2u * kTarImages) << "request " << zeroed;
  }
}

// Opens the archive with that cache, and returns the number of requests.
class StoreTarCache : public StoreTar {
 protected:
  size_t requests_to_open(const std::string& expected) {
    const size_t before = server.asks().size();
    const auto data = open(0, folder / "cache");
    const size_t requests = server.asks().size() - before;
    EXPECT_EQ(samples_of(*data), expected);
    store->flush();
    return requests;
  }
  static std::string samples_of(const Dataset& data) {
    std::string samples;
    Sample sample;
    for (size_t i = 0; i < data.size(); ++i) {
      data.read(i, sample);
      samples += std::to_string(sample.label) + " " + testing::to_text(sample.bytes);
    }
    return samples;
  }
  // Serves the files of `pairs`, and returns their samples.
  std::string serve_pairs() {
    const std::string command =
        "tar -cf " + (folder / "a.tar") + " -C " + (folder / "pairs") + " --sort=name .";
    EXPECT_EQ(std::system(command.c_str()), 0);
    server.put("/a.tar", testing::read_text(folder / "a.tar"));
    return expected();
  }
  std::string expected() { return samples_of(*open_dataset(env(), "tar:" + (folder / "a.tar"))); }
};

TEST_F(StoreTarCache, TheMembersAreKept) {
  const std::string here = expected();
  EXPECT_GT(requests_to_open(here), 10u);
  EXPECT_EQ(requests_to_open(here), 1u);
  // A damaged list is made again.
  for (const auto& list : std::filesystem::directory_iterator(folder / "cache/lists"))
    testing::write_file(list.path(), "SATTARS3, damaged");
  EXPECT_GT(requests_to_open(here), 10u);
  EXPECT_EQ(requests_to_open(here), 1u);
  std::filesystem::remove_all(folder / "cache");
  EXPECT_GT(requests_to_open(here), 10u);
  // Another object of the same URL and size.
  server.put("/a.tar", archive, "\"2\"");
  EXPECT_GT(requests_to_open(here), 10u);
  EXPECT_EQ(requests_to_open(here), 1u);
  using Files = std::filesystem::directory_iterator;
  EXPECT_EQ(std::distance(Files(folder / "cache/lists"), Files()), 1) << "the old list is replaced";
}

TEST_F(StoreTarCache, HeadersTakeNoRoomInTheCache) {
  const auto data = open(0, folder / "cache");
  const auto entries = [&] {
    store->flush();
    size_t count = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder / "cache")) {
      const std::string name = file.path().filename();
      count += file.is_regular_file() && !name.starts_with('.') &&
               file.path().parent_path().filename() != "lists";
    }
    return count;
  };
  EXPECT_EQ(entries(), 0u);
  samples_of(*data);
  EXPECT_EQ(entries(), size_t(kTarImages));
}

TEST_F(StoreTarCache, WithoutACacheALongListIsInTheUsersFolder) {
  const testing::ScopedVariable xdg("XDG_CACHE_HOME", (folder / "user").c_str());
  const auto requests = [&](const std::string& path) {
    const size_t before = server.asks().size();
    StoreEnv with_store(
        env(), std::make_shared<ObjectStore>(env(), StoreOptions(), testing::quick_tuning()));
    open_dataset(with_store, "tar:" + server.url(path));
    return server.asks().size() - before;
  };
  EXPECT_GT(requests("/a.tar"), 10u);
  EXPECT_GT(requests("/a.tar"), 10u) << "it is short";
  std::string many = archive;  // archives joined by cat may hold the same names
  for (int i = 0; i < 3; ++i) many += many;
  server.put("/many.tar", many);
  EXPECT_GT(requests("/many.tar"), 40u);
  EXPECT_EQ(requests("/many.tar"), 1u);
  const std::filesystem::path lists = folder / "user/saturate/archives";
  for (const auto& list : std::filesystem::directory_iterator(lists))
    testing::write_file(list.path(), "SATTARS3, damaged");
  EXPECT_GT(requests("/many.tar"), 40u);
  EXPECT_EQ(requests("/many.tar"), 1u);
  std::filesystem::remove_all(lists);
  testing::write_file(lists, "no folder");
  EXPECT_GT(requests("/many.tar"), 40u) << "nothing can be kept";
}

TEST_F(StoreTarCache, LabelsBesideImagesAreKept) {
  for (int i = 0; i < 3; ++i) {
    const std::string key = folder / ("pairs/" + std::to_string(i));
    testing::write_file(key + ".jpg", testing::noise_jpeg(16, 16, uint64_t(i)));
    testing::write_file(key + ".cls", std::to_string(2 - i));
  }
  const std::string here = serve_pairs();
  ASSERT_TRUE(here.starts_with("2 "));
  requests_to_open(here);
  EXPECT_EQ(requests_to_open(here), 1u);
}

TEST_F(StoreTarCache, OnlyLabelsAreKeptOfFilesBesideImages) {
  for (int i = 0; i < 3; ++i) {
    const std::string key = folder / ("pairs/" + std::to_string(i)), text(100'000, 'x');
    testing::write_file(key + ".jpg", testing::noise_jpeg(16, 16, uint64_t(i)));
    testing::write_file(key + ".json",
                        R"({"text": ")" + text + R"(", "label": )" + std::to_string(2 - i) + "}");
    testing::write_file(key + ".txt", text);
  }
  const std::string here = serve_pairs();
  ASSERT_TRUE(here.starts_with("2 "));
  requests_to_open(here);
  EXPECT_EQ(requests_to_open(here), 1u);
  for (const auto& list : std::filesystem::directory_iterator(folder / "cache/lists"))
    EXPECT_LT(std::filesystem::file_size(list.path()), 1'000u);
}

TEST(FarMembers, OnlyGoodListsOfTheSameObjectAreUsed) {
  FarMember image, label;
  image.name = "a.jpg";
  image.offset = 512;
  image.size = 100;
  label.name = "a.cls";
  label.offset = 1024;
  label.size = 1;
  label.label = "7";
  const auto file = to_members_file({image, label}, "object");
  const auto again = from_members_file(file, "object", 1025);
  ASSERT_TRUE(again);
  ASSERT_EQ(again->size(), 2u);
  EXPECT_EQ(again->at(0).name, "a.jpg");
  EXPECT_FALSE(again->at(0).label);
  EXPECT_EQ(again->at(1).label, "7");
  EXPECT_FALSE(from_members_file(file, "other", 1025));
  EXPECT_FALSE(from_members_file(file, "object", 1024)) << "beyond the end";
  for (size_t i = 0; i < file.size(); ++i) {
    auto bad = file;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(from_members_file(bad, "object", 1025)) << i;
    EXPECT_FALSE(from_members_file(std::span(file).first(i), "object", 1025)) << i;
  }
}

}  // namespace
}  // namespace saturate
