// Bytes that come damaged from a store: they are fetched again, and stay in no cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "data/export.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/cache_space.h"
#include "store/extent_cache.h"
#include "store/link.h"
#include "store/object_store.h"
#include "store/store_env.h"
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

constexpr int kImages = 24;

class StoreDamage : public ::testing::Test {
 protected:
  StoreDamage() {
    testing::write_folder_dataset(folder / "images", kImages);
    for (const std::string kind : {"shard", "tar"}) {
      PackOptions options;
      options.out = kind + ":" + (folder / kind);
      pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), options);
      server.put("/" + kind, testing::read_text(folder / kind));
    }
  }

  std::shared_ptr<ObjectStore> store(const std::string& cache = "cache") {
    return std::make_shared<ObjectStore>(env(), StoreOptions{folder / cache, 1, 60},
                                         quick_tuning());
  }
  std::unique_ptr<Dataset> open(const std::string& kind, std::shared_ptr<ObjectStore> from) {
    StoreEnv with_store(env(), std::move(from));
    return open_dataset(with_store, kind + ":" + server.url("/" + kind));
  }
  static std::unique_ptr<Dataset> in_memory(std::unique_ptr<Dataset> data) {
    CacheOptions options;
    options.mode = CacheMode::kRam;
    return cache_dataset(std::move(data), options);
  }
  std::string epochs(const Dataset& data) {
    LoaderOptions options;
    options.batch = 8;
    options.threads = 2;
    options.type = PixelType::kUint8;
    AugmentOptions augment;
    augment.size = 8;
    return testing::epochs_of(data, options, augment);
  }
  // Replies from byte `begin` on have no good byte; those of each range only the first time, unless
  // `always`.
  void damage(uint64_t begin, bool always = false) {
    const auto seen = std::make_shared<std::set<uint64_t>>();
    const auto mutex = std::make_shared<std::mutex>();
    server.tamper([=](const HttpAsk& ask, HttpAnswer& answer) {
      const std::lock_guard lock(*mutex);
      if (answer.status != 206 || ask.first < begin) return;
      if (seen->insert(ask.first).second || always)
        for (char& c : answer.body) c ^= 0x55;
    });
  }

  TempDir folder;
  StoreServer server;
};

TEST_F(StoreDamage, SamplesAreFetchedAgain) {
  for (const std::string kind : {"shard", "tar"}) {
    const std::string expected = epochs(*open_dataset(env(), kind + ":" + (folder / kind)));
    server.tamper({});
    const auto first = store();
    const auto data = open(kind, first);
    damage(600);
    EXPECT_EQ(epochs(*data), expected) << kind;
    first->flush();
    server.tamper({});
    const auto held = in_memory(open(kind, store("other cache")));
    damage(600);
    EXPECT_EQ(epochs(*held), expected) << kind;
    // The cache holds good bytes.
    server.tamper({});
    const auto later = store();
    const auto again = open(kind, later);
    EXPECT_EQ(epochs(*again), expected) << kind;
    EXPECT_GE(later->counts().disk_hits, 2u * kImages) << kind;
  }
}

TEST_F(StoreDamage, TheIndexOfAShardAndTheHeadersOfATarAreFetchedAgain) {
  damage(600);
  for (const std::string kind : {"shard", "tar"})
    EXPECT_EQ(open(kind, store())->size(), size_t(kImages)) << kind;
}

// A label has no checksum: the start fails, and the next one reads it again.
TEST_F(StoreDamage, LabelsOfATarStayInNoCacheIfTheyCannotBeRight) {
  for (int i = 0; i < 3; ++i) {
    const std::string key = folder / ("pairs/" + std::to_string(i));
    testing::write_file(key + ".jpg", testing::noise_jpeg(64, 64, uint64_t(i)));
    testing::write_file(key + ".json", "{\"label\": " + std::to_string(i) + "}");
  }
  ASSERT_EQ(std::system(("tar -cf " + (folder / "pairs.tar") + " -C " + (folder / "pairs") +
                         " --sort=name .")
                            .c_str()),
            0);
  const std::string archive = testing::read_text(folder / "pairs.tar");
  server.put("/tar", archive);
  const uint64_t at = archive.find("{\"label\": 1}");
  server.tamper([at](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.first <= at && at < ask.first + answer.body.size()) answer.body[at - ask.first] = 'x';
  });
  EXPECT_EQ(error_of([&] { open("tar", store()); }).kind(), ErrorKind::kData);
  server.tamper({});
  EXPECT_EQ(open("tar", store())->size(), 3u);
}

TEST_F(StoreDamage, FilesAndObjectsMayBeInOneList) {
  for (const std::string kind : {"shard", "tar"}) {
    const std::string here = folder / kind, there = server.url("/" + kind);
    for (const std::string& list : {here + "," + there, there + "," + here})
      EXPECT_EQ(open_dataset(env(), kind + ":" + list)->size(), 2u * kImages) << list;
    testing::write_file(folder / ("a." + kind), testing::read_text(here));
    server.put("/b." + kind, testing::read_text(here));
    const std::string bare = (folder / ("a." + kind)) + "," + server.url("/b." + kind);
    EXPECT_EQ(open_dataset(env(), bare)->size(), 2u * kImages) << bare;
  }
}

TEST_F(StoreDamage, DamageThatStaysIsAnErrorUntilTheStoreIsMended) {
  auto data = open("shard", store());
  damage(600, true);
  const Error error = error_of([&] { epochs(*data); });
  data.reset();  // it may still write what came late
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(std::string(error.what()).find("wrong checksum"), std::string::npos) << error.what();
  EXPECT_EQ(error_of([&] { open("shard", store("other cache")); }).kind(), ErrorKind::kData);
  server.tamper({});
  EXPECT_FALSE(epochs(*open("shard", store())).empty());
  EXPECT_EQ(open("shard", store("other cache"))->size(), size_t(kImages));
}

TEST_F(StoreDamage, OnlyTheRangesOfTheDamagedPartLeaveTheCache) {
  ExtentCache cache(env(), folder / "cache", 1, quick_tuning());
  const auto bytes = std::make_shared<const std::vector<std::byte>>(100, std::byte{7});
  const std::string grouped = StoreObject::identity_of_group("g") + "object";
  for (const std::string& identity : {std::string("object"), grouped})
    for (const uint64_t offset : {0, 100, 200}) cache.write_later(identity, offset, bytes);
  cache.remove("object", 100, 100);
  cache.remove(grouped, 0, 100);
  cache.flush();
  std::vector<std::byte> out(100);
  for (const uint64_t offset : {0, 100, 200}) {
    EXPECT_EQ(cache.read("object", offset, out), offset != 100) << offset;
    EXPECT_EQ(cache.read(grouped, offset, out), offset != 0) << offset;
  }
}

TEST_F(StoreDamage, ObjectsWithoutAVersionAreNamedAndNotKept) {
  server.tamper([](const HttpAsk&, HttpAnswer& answer) { answer.headers.erase("ETag"); });
  ::testing::internal::CaptureStderr();
  const auto from = store();
  epochs(*open("shard", from));
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("neither ETag nor Last-Modified"), std::string::npos) << warning;
  EXPECT_NE(warning.find("data.cache_dir keeps nothing"), std::string::npos) << warning;
  const LinkUse link = link_use({}, from->counts(), 1);
  for (const std::string& line : link_advice(link))
    EXPECT_EQ(line.find("data.cache_dir and"), std::string::npos) << line;
}

// Caches on the way mark some replies so.
TEST_F(StoreDamage, AnETagThatIsMarkedAsWeakIsTheSame) {
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.number % 2) answer.headers["ETag"] = "W/" + answer.headers["ETag"];
  });
  EXPECT_EQ(epochs(*open("tar", store())), epochs(*open_dataset(env(), "tar:" + (folder / "tar"))));
}

TEST_F(StoreDamage, AFolderThatCannotBeACacheIsRefused) {
  for (const std::string bad : {"s3://KEY:SECRET@bucket/x", "~/cache", "/", ".", "//"}) {
    const Error error = error_of([&] {
      ObjectStore(env(), StoreOptions{bad, 1, 60}, quick_tuning());
    });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << bad;
    EXPECT_NE(std::string(error.what()).find("data.cache_dir"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("KEY:SECRET"), std::string::npos) << error.what();
  }
}

// The writer of a cache waits for another process's lock, but not when its process ends.
TEST_F(StoreDamage, AProcessThatEndsDoesNotWaitForALockedCache) {
  std::filesystem::create_directories(folder / "cache");
  auto cache = std::make_unique<ExtentCache>(env(), folder / "cache", 1, quick_tuning());
  const auto bytes = std::make_shared<const std::vector<std::byte>>(100, std::byte{7});
  const CacheSpace held(env(), folder / "cache");
  const auto begin = std::chrono::steady_clock::now();
  for (const uint64_t offset : {0, 100, 200}) cache->write_later("object", offset, bytes);
  cache.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

}  // namespace
}  // namespace saturate
