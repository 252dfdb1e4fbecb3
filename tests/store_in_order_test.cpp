// Commands that read all samples of a far source announce them, so that one request fetches many.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "data/export.h"
#include "data/inspect.h"
#include "data/source_index.h"
#include "saturate/data/input.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/index_testing.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::TempDir;

constexpr size_t kInOrderImages = 60;

class StoreInOrder : public ::testing::Test {
 protected:
  StoreInOrder() {
    testing::write_folder_dataset(folder / "images", kInOrderImages);
    pack(*open_dataset(env(), "folder:" + (folder / "images")), "a.shard");
    server.put("/a", testing::read_text(folder / "a.shard"));
    // A reader that is faster than the server waits, and requests are merged meanwhile.
    server.tamper([](const auto&, auto& answer) { answer.pause = std::chrono::milliseconds(5); });
  }
  PackReport pack(const Dataset& data, const std::string& name) {
    PackOptions options;
    options.out = "shard:" + (folder / name);
    return pack_dataset(env(), data, options);
  }
  // The requests of a command, for which it opens the source.
  size_t requests(const std::function<void(std::unique_ptr<Dataset>)>& command) {
    StoreTuning tuning = testing::quick_tuning();
    tuning.ahead_requests = 2;
    StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), StoreOptions(), tuning));
    auto data = open_dataset(with_store, "shard:" + server.url("/a"));
    const size_t before = server.asks().size();
    command(std::move(data));
    return server.asks().size() - before;
  }

  TempDir folder;
  testing::StoreServer server;
};

TEST_F(StoreInOrder, Packing) {
  EXPECT_LT(requests([&](const auto& data) { pack(*data, "b.shard"); }), kInOrderImages / 2);
  EXPECT_EQ(testing::read_text(folder / "b.shard"), testing::read_text(folder / "a.shard"));
}

TEST_F(StoreInOrder, Verifying) {
  EXPECT_LT(requests([&](const auto& data) {
              const auto report = inspect_dataset(*data, InspectDepth::kPixels, 1);
              EXPECT_EQ(report.samples, kInOrderImages);
              EXPECT_TRUE(report.broken.empty());
            }),
            kInOrderImages / 2);
}

TEST_F(StoreInOrder, Indexing) {
  EXPECT_LT(requests([&](const auto& data) {
              SourceIndex index(env(), folder / "a.points", SourceIndex::Kind::kGiven);
              EXPECT_EQ(index_dataset(*data, index, 1, {}).samples, kInOrderImages);
            }),
            kInOrderImages / 2);
}

TEST_F(StoreInOrder, PhotographsWithAnIndexAreDecodedAsFromADisk) {
  testing::write_photos(folder / "photos");
  PackOptions options;
  options.out = "tar:" + (folder / "photos.tar");
  pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "photos")), options);
  server.put("/photos.tar", testing::read_text(folder / "photos.tar"));
  const std::string there = "tar:" + server.url("/photos.tar"), path = folder / "x.points";
  const auto expected = testing::epochs_of(options.out, "off", 2);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(testing::epochs_of(there, path, 2), expected);
    EXPECT_EQ(testing::indexed_files(path), size_t(testing::kPhotos));
  }
}

TEST_F(StoreInOrder, Staging) {
  StageOptions options{StageMode::kTmpfs, folder.path()};
  EXPECT_LT(requests([&](auto data) {
              EXPECT_EQ(stage_dataset(env(), std::move(data), "a", options, 1)->size(),
                        kInOrderImages);
            }),
            kInOrderImages / 2);
}

}  // namespace
}  // namespace saturate
