// The cache on disk removes what is of no use any more: ranges of images that were replaced, and
// lists of other sources. It takes no object for another one of the same weak ETag.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "saturate/data/dataset.h"
#include "store/cache_names.h"
#include "store/extent_cache.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

namespace fs = std::filesystem;
using testing::env;
using testing::quick_tuning;
using testing::TempDir;

TEST(StaleCache, RangesOfReplacedImagesAreRemovedWithTheNextList) {
  const TempDir folder;
  testing::FakeBucket bucket;
  const testing::BucketVariables variables(folder.path(), bucket.server.url(""));
  for (const char* name : {"a/1.jpg", "a/2.jpg", "b/3.jpg"})
    bucket.put(std::string("data/") + name, testing::noise_jpeg(8, 8, 1));
  StoreOptions options;
  options.cache_dir = folder / "cache";
  options.cache_gb = 1;
  const auto open = [&] {
    StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), options, quick_tuning()));
    return open_dataset(with_store, "folder:s3://bucket/data");
  };
  const auto read_all = [&] {
    Sample sample;
    const auto data = open();
    for (size_t i = 0; i < data->size(); ++i) data->read(i, sample);
  };
  const auto ranges = [&] {
    size_t count = 0;
    for (const auto& file : fs::recursive_directory_iterator(options.cache_dir))
      count += entry_length(file.path().filename().string()).has_value();
    return count;
  };
  read_all();
  EXPECT_EQ(ranges(), 3u);
  bucket.put("data/a/2.jpg", testing::noise_jpeg(9, 9, 2));
  open();
  EXPECT_EQ(ranges(), 3u) << "the list was kept";
  fs::remove_all(options.cache_dir + "/lists");
  open();
  EXPECT_EQ(ranges(), 2u);
  const size_t before = bucket.server.asks().size();
  read_all();
  EXPECT_EQ(ranges(), 3u);
  EXPECT_EQ(bucket.server.asks().size(), before + 1) << "the others have stayed";
}

TEST(StaleCache, AnObjectOfAWeakETagIsKeptByItsDate) {
  const TempDir folder;
  testing::StoreServer server;
  const StoreOptions options{folder / "cache", 1, 60};
  // The requests that reading the object takes.
  const auto asks = [&](const std::string& text, const std::string& date) {
    server.put("/a", text, "W/\"1\"");
    server.tamper([date](const testing::HttpAsk&, testing::HttpAnswer& answer) {
      if (!date.empty()) answer.headers["Last-Modified"] = date;
    });
    const size_t before = server.asks().size();
    ObjectStore store(env(), options, quick_tuning());
    std::vector<std::byte> out(1'000);
    store.read(store.open(server.url("/a")), 50'000, out);
    EXPECT_EQ(testing::to_text(out), text.substr(50'000, 1'000));
    return server.asks().size() - before;
  };
  const std::string text = testing::noise_text(100'000, 1), other = testing::noise_text(100'000, 2);
  const std::string day = "Wed, 25 Nov 2026 13:44:45 GMT", later = "Thu, 26 Nov 2026 13:44:45 GMT";
  EXPECT_EQ(asks(text, day), 2u) << "to open it, and for the range";
  EXPECT_EQ(asks(text, day), 1u);
  EXPECT_EQ(asks(other, later), 2u);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(asks(text, ""), 2u);
  EXPECT_EQ(asks(other, ""), 2u);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("only a weak ETag"), std::string::npos) << printed;
}

TEST(StaleCache, ListsThatAreNotInUseMakeRoom) {
  constexpr size_t kLength = 4'000;
  for (const bool in_use : {false, true}) {
    const TempDir folder;
    const std::string list = folder / "lists/0123456789abcdef";
    const auto open = [&] {
      return std::make_unique<ExtentCache>(env(), folder.path(), testing::cache_gb(4, kLength, 2),
                                           quick_tuning());
    };
    const auto bytes = std::make_shared<const std::vector<std::byte>>(kLength);
    EXPECT_TRUE(open()->keep_list("0123456789abcdef", std::vector<std::byte>(2 * kLength)));
    const auto cache = open();
    if (in_use) cache->use_list("0123456789abcdef");
    cache->use("object");
    size_t kept = 0;
    for (uint64_t i = 0; i < 4; ++i) {
      cache->write_later("object", i * kLength, bytes);
      cache->flush();
      kept += cache->plan("object", i * kLength, kLength, ReadAdvice::kUnknown);
    }
    EXPECT_EQ(kept == 4, !in_use) << kept;
    EXPECT_EQ(fs::exists(list), in_use);
  }
}

}  // namespace
}  // namespace saturate
