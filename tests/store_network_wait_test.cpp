// The network's part of the time for which a loader's consumer waits.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "data/export.h"
#include "data/network_share.h"
#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using testing::env;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::StoreServer;
using testing::TempDir;
using testing::wait_for;

NetworkShare::Time after(int ms) {
  return NetworkShare::Time(milliseconds(ms));
}

TEST(NetworkShare, IsTheFractionOfWorkingThreadsThatWaitForTheStore) {
  NetworkShare share;
  share.set_consumer_waits(true, 4, after(0));
  share.set_blocked(true, 4, after(10));
  share.set_blocked(true, 4, after(20));   // a quarter of 10 ms
  share.set_blocked(false, 4, after(40));  // half of 20 ms
  EXPECT_TRUE(share.counts());
  share.add(4, after(48));                        // a quarter of 8 ms; now two threads are idle
  share.set_consumer_waits(false, 2, after(50));  // half of 2 ms
  EXPECT_EQ(share.sum(), std::chrono::microseconds(2'500 + 10'000 + 2'000 + 1'000));
}

TEST(NetworkShare, IsTheWholeWaitIfAllWorkingThreadsWait) {
  NetworkShare share;
  for (int i = 0; i < 3; ++i) share.set_blocked(true, 3, after(0));
  share.set_consumer_waits(true, 3, after(10));
  share.set_consumer_waits(false, 3, after(50));
  EXPECT_EQ(share.sum(), milliseconds(40));
}

TEST(NetworkShare, TimeWithoutAWaitingConsumerDoesNotCount) {
  NetworkShare share;
  share.set_consumer_waits(true, 1, after(0));
  EXPECT_FALSE(share.counts()) << "no thread waits for the store";
  share.set_consumer_waits(false, 1, after(10));
  share.set_blocked(true, 1, after(20));
  EXPECT_FALSE(share.counts());
  share.set_blocked(false, 1, after(100));
  EXPECT_EQ(share.sum(), nanoseconds(0));
}

class NetworkWaitOfALoader : public ::testing::Test {
 protected:
  NetworkWaitOfALoader() {
    testing::write_folder_dataset(folder / "images", 24);
    PackOptions options;
    options.out = "shard:" + (folder / "a.shard");
    pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), options);
    server.put("/a", testing::read_text(folder / "a.shard"));
  }
  ~NetworkWaitOfALoader() override { *released = true; }

  static std::unique_ptr<Loader> load(const Dataset& data) {
    LoaderOptions options;
    options.batch = 8;
    options.threads = 1;
    options.type = PixelType::kUint8;
    AugmentOptions augment;
    augment.size = 8;
    auto loader = std::make_unique<Loader>(data, options, augment);
    loader->start_epoch(0);
    return loader;
  }
  static void finish(Loader& loader) {
    size_t count = 0;
    for (Batch batch; loader.next(batch);) count += batch.count();
    EXPECT_EQ(count, 24u);
  }

  TempDir folder;
  StoreServer server;
  const std::shared_ptr<std::atomic<bool>> released = std::make_shared<std::atomic<bool>>(false);
};

// The server answers no request for samples until the test allows it.
TEST_F(NetworkWaitOfALoader, IsAllOfAWaitForAServerThatDoesNotAnswer) {
  StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), StoreOptions()));
  const auto data = open_dataset(with_store, "shard:" + server.url("/a"));
  server.tamper([released = released](const HttpAsk&, HttpAnswer&) {
    wait_for([&] { return released->load(); });
  });
  const auto loader = load(*data);
  ASSERT_TRUE(wait_for([&] {
    EXPECT_FALSE(loader->wait(milliseconds(1)));
    return loader->network_wait() > nanoseconds(0);
  }));
  // From here on the only thread waits for the store.
  const nanoseconds before = loader->network_wait();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(loader->wait(milliseconds(20)));
  const nanoseconds waited = std::chrono::steady_clock::now() - begin;
  const nanoseconds found = loader->network_wait() - before;
  EXPECT_GE(found, milliseconds(20));
  EXPECT_LE(found, waited);
  *released = true;
  finish(*loader);
}

TEST_F(NetworkWaitOfALoader, IsZeroForLocalFiles) {
  for (const std::string& source :
       {"folder:" + (folder / "images"), "shard:" + (folder / "a.shard")}) {
    const auto data = open_dataset(env(), source);
    const auto loader = load(*data);
    finish(*loader);
    EXPECT_EQ(loader->network_wait(), nanoseconds(0)) << source;
  }
}

}  // namespace
}  // namespace saturate
