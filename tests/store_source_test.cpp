// shard: and tar: over HTTP against the same files on disk.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "data/sample_writer.h"
#include "data/shard_format.h"
#include "data/tar_format.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/cache_names.h"
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

constexpr int kFarSamples = 90;

// A folder of images as two shards and two archives, on disk and on a server.
class StoreSource : public ::testing::Test {
 protected:
  StoreSource() {
    testing::write_folder_dataset(folder / "images", kFarSamples);
    const auto images = open_dataset(env(), "folder:" + (folder / "images"));
    for (const char* half : {"0", "1"}) {
      write(*write_shard(env(), folder / half + std::string(".shard"), *images), *images, half);
      write(*write_tar(env(), folder / half + std::string(".tar"), *images), *images, half);
      for (const char* ending : {".shard", ".tar"})
        server.put("/" + std::string(half) + ending,
                   testing::read_text(folder / (half + std::string(ending))));
    }
    store = std::make_shared<ObjectStore>(env(), StoreOptions(), tuning());
  }

  static void write(SampleWriter& writer, const Dataset& images, const std::string& half) {
    Sample sample;
    for (size_t i = 0; i < images.size(); ++i) {
      if ((i < images.size() / 2) != (half == "0")) continue;
      images.read(i, sample);
      writer.append(sample, 0);
    }
    writer.finish();
  }
  static StoreTuning tuning() {
    StoreTuning small = quick_tuning();
    small.ahead_bytes = 6'000;  // a few samples
    small.ahead_requests = 4;
    small.merged_gap = 64;
    small.second_least_s = 1'000;  // no second requests
    return small;
  }
  std::string local(const std::string& scheme) const {
    return scheme + ":" + (folder / "{0..1}.") + scheme;
  }
  std::string far(const std::string& scheme) const {
    return scheme + ":" + server.url("/{0..1}.") + scheme;
  }
  std::unique_ptr<Dataset> open_far(const std::string& uri) {
    StoreEnv with_store(env(), store);
    return open_dataset(with_store, uri);
  }
  // One reply in twenty is bad, in each way.
  void fail_often() {
    server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
      RandomStream random(5, 0, ask.number, RandomUse::kSynthetic);
      if (!random.bernoulli(0.05)) return;
      const uint64_t kind = random.below(6);
      if (kind == 0) answer = {503, {}, ""};
      if (kind == 1) answer = {429, {{"Retry-After", "0"}}, ""};
      if (kind == 2) answer.reset = true;
      if (kind == 3) answer.claimed = answer.body.size() + 10;
      if (kind == 4) answer.body += "x";
      if (kind == 5) answer.headers.erase("Content-Range");
    });
  }

  TempDir folder;
  StoreServer server;
  std::shared_ptr<ObjectStore> store;
};

LoaderOptions loader_options(int threads, ShuffleMode shuffle) {
  LoaderOptions options;
  options.batch = 8;
  options.threads = threads;
  options.prefetch = 2;
  options.seed = 3;
  options.shuffle = {shuffle, 4};
  options.type = PixelType::kUint8;
  return options;
}

// The samples and pixels of two epochs, from a batch of the first on.
std::string batches_of(const Dataset& data, const LoaderOptions& options, size_t first = 0) {
  AugmentOptions augment;
  augment.size = 8;
  augment.crop = CropKind::kRandomResized;
  Loader loader(data, options, augment);
  std::string all;
  for (uint32_t epoch = 0; epoch < 2; ++epoch) {
    loader.start_epoch(epoch, epoch == 0 ? first : 0);
    for (Batch batch; loader.next(batch);) {
      for (const BatchSample& sample : batch.samples)
        all += std::to_string(sample.index) + ":" + std::to_string(sample.label) + " ";
      all += testing::to_text({batch.pixels.get(), batch.count() * 8 * 8 * 3});
    }
  }
  return all;
}

TEST_F(StoreSource, EqualsTheLocalOneWhileRequestsFail) {
  for (const std::string scheme : {"shard", "tar"}) {
    const auto here = open_dataset(env(), local(scheme));
    fail_often();
    const auto there = open_far(far(scheme));
    ASSERT_EQ(there->size(), size_t(kFarSamples));
    EXPECT_EQ(there->classes(), here->classes());
    for (const ShuffleMode shuffle : {ShuffleMode::kFull, ShuffleMode::kBlock, ShuffleMode::kNone})
      for (const size_t first : {0, 5})
        EXPECT_EQ(batches_of(*there, loader_options(3, shuffle), first),
                  batches_of(*here, loader_options(1, shuffle), first))
            << scheme << " " << int(shuffle) << " " << first;
  }
  EXPECT_GT(store->counts().retries, 10u);
}

TEST_F(StoreSource, AsksOnlyForBytesThatSamplesNeed) {
  const auto there = open_far(far("shard"));
  LoaderOptions options = loader_options(2, ShuffleMode::kFull);
  options.shard = {0, 2, Uneven::kJoin};  // half of each batch
  AugmentOptions augment;
  augment.size = 8;
  const size_t opening = server.asks().size();
  std::set<uint32_t> used;
  {
    Loader loader(*there, options, augment);
    loader.start_epoch(0);
    for (Batch batch; loader.next(batch);)
      for (const BatchSample& sample : batch.samples) used.insert(sample.index);
  }
  ASSERT_EQ(used.size(), size_t(kFarSamples / 2));
  uint64_t needed = 0, asked = 0;
  for (const uint32_t index : used) needed += there->bytes(index);
  const auto asks = server.asks();
  for (size_t i = opening; i < asks.size(); ++i) asked += asks[i].length();
  // Between neighbours lies padding.
  EXPECT_LE(asked, needed + asks.size() * 64);
  EXPECT_LE(asks.size() - opening, used.size());
}

TEST_F(StoreSource, OpeningAnArchiveOfPairsReadsLittleOfIt) {
  std::string archive;
  const auto add = [&](const std::string& name, std::string payload) {
    const auto header = make_tar_header(name, payload.size());
    payload.resize(tar_padded(payload.size()));
    archive += testing::to_text(header) + payload;
  };
  for (int i = 0; i < 20; ++i) {
    add(std::to_string(i) + ".jpg", std::string(80'000, 'j'));
    add(std::to_string(i) + ".cls", "1");
    add(std::to_string(i) + ".json", "{}");
  }
  server.put("/pairs.tar", archive + std::string(10'240, '\0'));
  StoreTuning tuning = StoreSource::tuning();
  tuning.request_bytes = 0;  // a request costs nothing
  store = std::make_shared<ObjectStore>(env(), StoreOptions(), tuning);
  const uint64_t before = store->counts().bytes;
  EXPECT_EQ(open_far("tar:" + server.url("/pairs.tar"))->size(), 20u);
  EXPECT_LT(store->counts().bytes - before, 21u * 4'608 + 20'480) << "some 4 KB for each image";
}

TEST_F(StoreSource, AnAbandonedEpochLeavesNoMemoryInUse) {
  const auto there = open_far(far("shard"));
  AugmentOptions augment;
  augment.size = 8;
  testing::expect_withdrawn(*there, loader_options(2, ShuffleMode::kFull), augment, 20, server,
                            "/1.shard", kFarSamples - 1);
}

TEST_F(StoreSource, CachedSamplesAreNotFetchedAhead) {
  CacheOptions cache;
  cache.mode = CacheMode::kRam;
  cache.gb = 1;
  const auto data = cache_dataset(open_far(far("shard")), cache);
  const auto here = open_dataset(env(), local("shard"));
  const LoaderOptions options = loader_options(2, ShuffleMode::kFull);
  batches_of(*data, options);
  const size_t before = server.asks().size();
  EXPECT_EQ(batches_of(*data, options), batches_of(*here, options));
  EXPECT_EQ(server.asks().size(), before);
}

// Three machines with a rank each: the loader tells the cache which samples this one reads again.
TEST_F(StoreSource, ACacheOfAThirdServesMoreThanAThirdOfOneMachinesReads) {
  const auto plain = open_far(far("shard"));
  uint64_t bytes = 0;
  for (size_t i = 0; i < plain->size(); ++i) bytes += room_of_entry(plain->bytes(i));
  // A third, the folder and what a range needs at most while it is written, and the locks.
  const double budget = (double(bytes) / 3 + 3 * double(kCacheBlock)) * 64 / 63;
  const StoreOptions options{folder / "cache", budget * 1e-9, 60};
  store = std::make_shared<ObjectStore>(env(), options, tuning());
  const auto there = open_far(far("shard"));
  AugmentOptions augment;
  augment.size = 8;
  LoaderOptions loading = loader_options(2, ShuffleMode::kFull);
  loading.batch = 9;
  loading.shard = {1, 3, Uneven::kJoin, 1, 1};
  Loader loader(*there, loading, augment);
  uint64_t hits = 0, reads = 0;
  for (uint32_t epoch = 0; epoch < 20; ++epoch) {
    const uint64_t before = store->counts().disk_hits;
    loader.start_epoch(epoch);
    for (Batch batch; loader.next(batch);)
      if (epoch >= 5) reads += batch.count();
    store->flush();
    if (epoch >= 5) hits += store->counts().disk_hits - before;
  }
  EXPECT_EQ(reads, 15u * kFarSamples / 3);
  EXPECT_GT(hits, reads * 2 / 5);  // about a half; the order of threads moves it a little
}

// The index of JPEGs wraps the source, whose samples are still announced.
TEST_F(StoreSource, FastDecodingWithAnIndexEqualsTheLocalSource) {
  DataOptions fast;
  fast.decode = DecodeMode::kFast;
  fast.index = {IndexMode::kFile, folder / "far.points"};
  LoaderOptions options = loader_options(2, ShuffleMode::kFull);
  options.decode = DecodeMode::kFast;
  const auto there = open_input(env(), far("tar"), fast);
  EXPECT_GT(there->look_ahead(), 0u);
  EXPECT_EQ(batches_of(*there, options), batches_of(*open_dataset(env(), local("tar")), options));
}

TEST_F(StoreSource, OpensByItselfAndKeepsWhatItReadOnDisk) {
  DataOptions options;
  options.store.cache_dir = folder / "cache";
  options.cache.gb = 1;
  Sample here, there;
  for (const std::string scheme : {"shard", "tar"}) {
    open_dataset(env(), local(scheme))->read(50, here);
    for (int round = 0; round < 2; ++round) {
      const size_t before = server.asks().size();
      open_input(env(), far(scheme), options)->read(50, there);
      EXPECT_EQ(here.bytes, there.bytes);
      EXPECT_TRUE(there.name.starts_with(server.url("/"))) << there.name;
      if (round == 1) {
        EXPECT_EQ(server.asks().size() - before, 2u) << "one opens each; the index is kept";
      }
    }
  }
  EXPECT_TRUE(env().is_directory(folder / "cache"));
  EXPECT_EQ(open_dataset(env(), server.url("/0.shard"))->size(), size_t(kFarSamples / 2));
  EXPECT_EQ(open_dataset(env(), server.url("/0.tar?token=x"))->size(), size_t(kFarSamples / 2));
  EXPECT_EQ(open_dataset(env(), "split:held,1/3," + far("tar"))->size(), size_t(kFarSamples / 3));
}

TEST_F(StoreSource, IsReadInAForkedChildBesideAnOpenOne) {
#if SATURATE_TSAN
  GTEST_SKIP() << "ThreadSanitizer refuses threads after a fork";
#endif
  const auto data = open_input(env(), far("shard"), {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // it must not wait for a thread that only the parent has
    Sample here, there;
    open_dataset(env(), local("shard"))->read(50, here);
    open_input(env(), far("shard"), {})->read(50, there);
    _exit(here.bytes == there.bytes ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(StoreSource, OtherSchemesSayWhatToDo) {
  const std::vector<std::string> uris{"folder:" + server.url("/images"), "lmdb:s3://bucket/x",
                                      server.url("/photo.jpg"), "idx:gs://bucket/x"};
  for (const std::string& uri : uris) {
    const Error error = error_of([&] { open_dataset(env(), uri); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.remedy().find("shard:URL"), std::string::npos) << error.what();
  }
}

// An archive whose server claims that it is large, and whose first member claims most of it.
TEST_F(StoreSource, ClaimedSizesCostNoMemory) {
  const std::string size = "77777777777", total = "70000000000";
  std::string header(512, '\0');
  header.replace(0, 7, "a/b.jpg");
  header.replace(124, 11, size);
  header.replace(156, 1, "0");
  header.replace(257, 6, std::string("ustar\0", 6));
  unsigned sum = 8 * ' ';
  for (size_t i = 0; i < header.size(); ++i)
    if (i < 148 || i >= 156) sum += uint8_t(header[i]);
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", sum);
  header.replace(148, 7, std::string(digits, 7));
  header.replace(155, 1, " ");
  server.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    answer = {206,
              {{"Content-Range", "bytes " + std::to_string(ask.first) + "-" +
                                     std::to_string(ask.last) + "/" + total}},
              header + std::string(ask.length() > 512 ? ask.length() - 512 : 0, '\0')};
  });
  const Error error = error_of([&] { open_far("tar:" + server.url("/huge.tar")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("claims"), std::string::npos) << error.what();
}

TEST_F(StoreSource, FailuresOfTheNetworkAreNotSkipped) {
  StoreOptions options;
  options.timeout_s = 0.05;
  store = std::make_shared<ObjectStore>(env(), options, tuning());
  const auto there = open_far(far("shard"));
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.path == "/1.shard") answer = {503, {}, ""};
  });
  LoaderOptions skipping = loader_options(2, ShuffleMode::kNone);
  skipping.on_error = OnError::kSkip;
  AugmentOptions augment;
  augment.size = 8;
  Loader loader(*there, skipping, augment);
  loader.start_epoch(0);
  const Error error = error_of([&] {
    for (Batch batch; loader.next(batch);) {
    }
  });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.where(), server.url("/1.shard"));
  EXPECT_EQ(loader.skipped_count(), 0u);
  // The store is back: the loader goes on where it was.
  server.tamper({});
  loader.start_epoch(0, 6);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
}

}  // namespace
}  // namespace saturate
