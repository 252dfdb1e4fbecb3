// Waits for a store that does not answer end when they are cancelled, long before the time limit.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "base/cancel.h"
#include "data/export.h"
#include "saturate/data/loader.h"
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
using testing::wait_for;

// Without cancelling, every test would take a day.
StoreOptions patient_store() {
  StoreOptions options;
  options.timeout_s = 86'400;
  return options;
}

class StoreCancel : public ::testing::Test {
 protected:
  StoreCancel() {
    testing::write_folder_dataset(folder / "images", 40);
    PackOptions options;
    options.out = "shard:" + (folder / "a.shard");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), options);
    server.put("/a", testing::read_text(folder / "a.shard"));
    data = open();
  }
  ~StoreCancel() override { *released = true; }

  std::unique_ptr<Dataset> open() {
    StoreEnv with_store(env(), store);
    return open_dataset(with_store, "shard:" + server.url("/a"));
  }
  // From now on the server does not answer.
  void hang() {
    server.tamper([released = released](const HttpAsk&, HttpAnswer&) {
      wait_for([&] { return released->load(); });
    });
  }
  // From now on it answers that it is busy.
  void refuse() {
    server.tamper([](const HttpAsk&, HttpAnswer& answer) { answer = {503, {}, ""}; });
  }
  void answer() {
    *released = true;
    server.tamper({});
  }
  bool asked_since(size_t before, size_t more) {
    return wait_for([&] { return server.asks().size() >= before + more; });
  }
  std::unique_ptr<Loader> load() {
    LoaderOptions options;
    options.batch = 8;
    options.threads = 3;
    options.type = PixelType::kUint8;
    options.wait_limit = std::chrono::seconds(60);  // stop() fails if the threads do not end
    AugmentOptions augment;
    augment.size = 8;
    return std::make_unique<Loader>(*data, options, augment);
  }

  TempDir folder;
  StoreServer server;
  const std::shared_ptr<std::atomic<bool>> released = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<ObjectStore> store =
      std::make_shared<ObjectStore>(env(), patient_store(), quick_tuning());
  std::unique_ptr<Dataset> data;
};

TEST_F(StoreCancel, ALoaderStopsWhileItsThreadsWaitForReplies) {
  hang();
  const size_t before = server.asks().size();
  const auto loader = load();
  for (uint32_t epoch = 0; epoch < 3; ++epoch) {
    loader->start_epoch(epoch);
    ASSERT_TRUE(asked_since(before, 1));
    loader->stop();
  }
}

TEST_F(StoreCancel, ALoaderStopsBetweenAttemptsAndGoesOnLater) {
  refuse();
  const size_t before = server.asks().size();
  const auto loader = load();
  loader->start_epoch(0);
  ASSERT_TRUE(asked_since(before, 10));
  loader->stop();
  answer();
  loader->start_epoch(0);
  size_t count = 0;
  for (Batch batch; loader->next(batch);) count += batch.count();
  EXPECT_EQ(count, 40u);
}

TEST_F(StoreCancel, ALoaderIsDestroyedWhileItsThreadsWait) {
  hang();
  const size_t before = server.asks().size();
  const auto loader = load();
  loader->start_epoch(0);
  ASSERT_TRUE(asked_since(before, 1));
}

TEST_F(StoreCancel, NextEndsWhenItsThreadIsCancelled) {
  refuse();
  const size_t before = server.asks().size();
  const auto loader = load();
  loader->start_epoch(0);
  const CancelScope scope([&] { return server.asks().size() > before + 5; });
  Batch batch;
  const Error error = error_of([&] { loader->next(batch); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("cancelled"), std::string::npos) << error.what();
}

TEST_F(StoreCancel, OpeningEndsOnThreadsThatWorkForTheCancelledOne) {
  hang();
  const size_t before = server.asks().size();
  const CancelScope scope([&] { return server.asks().size() > before; });
  StoreEnv with_store(env(), store);
  const Error error = error_of([&] {
    open_dataset(with_store, "shard:" + server.url("/{0..3}.shard"));  // on several threads
  });
  EXPECT_NE(error.reason().find("cancelled"), std::string::npos) << error.what();
}

TEST_F(StoreCancel, PackingEndsOnItsThreads) {
  refuse();
  const size_t before = server.asks().size();
  const CancelScope scope([&] { return server.asks().size() > before + 5; });
  PackOptions options;
  options.out = "shard:" + (folder / "b.shard");
  options.threads = 3;
  const Error error = error_of([&] { pack_dataset(env(), *data, options); });
  EXPECT_NE(error.reason().find("cancelled"), std::string::npos) << error.what();
  EXPECT_FALSE(env().exists(folder / "b.shard"));
}

TEST(Cancel, AScopeEndsWhereItStarted) {
  EXPECT_FALSE(is_cancelled());
  {
    const CancelScope outer([] { return true; });
    EXPECT_TRUE(is_cancelled());
    {
      const CancelScope inner([] { return false; });
      EXPECT_FALSE(is_cancelled());
    }
    EXPECT_TRUE(is_cancelled());
  }
  EXPECT_FALSE(is_cancelled());
}

}  // namespace
}  // namespace saturate
