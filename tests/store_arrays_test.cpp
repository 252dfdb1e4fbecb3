// npy:, npz:, safetensors: and tokens: over HTTP against the same files on disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "saturate/data/loader.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "tests/array_testing.h"
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

class StoreArrays : public ::testing::Test {
 protected:
  // The same text on disk and on the server.
  void put(const std::string& name, const std::string& text) {
    testing::write_file(folder / name, text);
    server.put("/" + name, text);
  }
  std::unique_ptr<Dataset> open_far(const std::string& uri) {
    StoreEnv with_store(env(), store);
    return open_dataset(with_store, uri);
  }
  // Every sample, by two epochs of a loader.
  static std::string epochs_of(const Dataset& data, int threads) {
    LoaderOptions options;
    options.batch = 6;
    options.threads = threads;
    options.output = BatchOutput::kTensors;
    Loader loader(data, options, {});
    std::string all;
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
      loader.start_epoch(epoch);
      for (Batch batch; loader.next(batch);)
        for (const BatchColumn& column : *batch.columns)
          all += testing::to_text(
              {batch.pixels.get() + column.offset, batch.count() * column.field.bytes()});
    }
    return all;
  }
  void expect_same(const std::string& here_uri, const std::string& far_uri) {
    const auto here = open_dataset(env(), here_uri), there = open_far(far_uri);
    EXPECT_EQ(there->size(), here->size()) << far_uri;
    EXPECT_EQ(there->classes(), here->classes());
    EXPECT_EQ(there->tensors(), here->tensors());
    EXPECT_EQ(epochs_of(*there, 3), epochs_of(*here, 1)) << far_uri;
  }

  TempDir folder;
  StoreServer server;
  std::shared_ptr<ObjectStore> store = std::make_shared<ObjectStore>(env(), StoreOptions(), [] {
    StoreTuning tuning = quick_tuning();
    tuning.second_least_s = 1'000;  // no second requests
    return tuning;
  }());
};

TEST_F(StoreArrays, EqualTheLocalFilesWhileRequestsFail) {
  put("plain.npz", testing::small_npz(false));
  put("deflated.npz", testing::small_npz(true));
  put("a.safetensors", testing::small_safetensors());
  std::vector<float> x(300);
  std::vector<uint8_t> y(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) / 7;
  for (size_t i = 0; i < y.size(); ++i) y[i] = uint8_t(i % 5);
  put("x.npy", testing::npy("<f4", "100, 3", testing::raw(x)));
  put("y.npy", testing::npy("|u1", "100,", testing::raw(y)));
  put("f.npy", testing::npy("<f4", "100, 3", testing::raw(x), /*fortran=*/true));
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.number % 9 == 2) answer = {503, {}, ""};
    if (ask.number % 9 == 5) answer.reset = true;
  });
  for (const std::string name : {"plain.npz", "deflated.npz"})
    expect_same("npz:" + (folder / name), "npz:" + server.url("/" + name + "?signature=s"));
  expect_same("safetensors:" + (folder / "a.safetensors"), server.url("/a.safetensors"));
  expect_same("npy:" + (folder / "x.npy") + "," + (folder / "y.npy"),
              "npy:" + server.url("/x.npy?a=b") + "," + server.url("/y.npy"));
  expect_same("npy:" + (folder / "f.npy") + ",fields=f", server.url("/f.npy,fields=f"));
}

TEST_F(StoreArrays, TokensAreReadByRangesAheadOfTheirUse) {
  std::vector<uint16_t> tokens(5'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint16_t(i * 7);
  put("0.bin", testing::raw(tokens));
  put("1.bin", testing::llmc_tokens(tokens, uint32_t(tokens.size())));
  const std::string options = ",context=100";
  expect_same("tokens:" + (folder / "{0..1}.bin") + options,
              "tokens:" + server.url("/{0..1}.bin") + options);
  const auto there = open_far("tokens:" + server.url("/0.bin") + options);
  EXPECT_GT(there->look_ahead(), 0u);
  const size_t before = server.asks().size();
  there->advise(ReadAdvice::kSoon, 20, 1);
  ASSERT_TRUE(testing::wait_for([&] { return server.asks().size() > before; }));
  Sample sample;
  there->read(20, sample);
  ASSERT_EQ(server.asks().size(), before + 1);
  EXPECT_EQ(server.asks().back().first, 20u * 100 * 2);
  EXPECT_EQ(server.asks().back().length(), 101u * 2);
}

// Above 64 MiB an array is not read when it is opened.
TEST_F(StoreArrays, ALargeArrayIsReadSampleBySample) {
  constexpr size_t kRow = 1 << 20, kRows = 66;
  std::string values(kRow * kRows, 'x');
  for (size_t i = 0; i < kRows; ++i) values[i * kRow] = char('0' + i % 10);
  server.put("/x.npy", testing::npy("|u1", "66, 1048576", values));
  const auto there = open_far(server.url("/x.npy"));
  ASSERT_EQ(there->size(), kRows);
  uint64_t asked = 0;
  for (const HttpAsk& ask : server.asks()) asked += ask.length();
  EXPECT_LT(asked, 20'000u);
  const size_t before = server.asks().size();
  Sample sample;
  there->advise(ReadAdvice::kSoon, 43, 1);
  there->read(43, sample);
  EXPECT_EQ(testing::to_text(sample.bytes), values.substr(43 * kRow, kRow));
  EXPECT_EQ(server.asks().size(), before + 1);
}

// A server that claims 70 GB, of labels, which would have to be in memory.
TEST_F(StoreArrays, ClaimedSizesCostNoMemory) {
  const std::string header = testing::npy("<i8", "8750000000", "");
  const std::string total = std::to_string(header.size() + 70'000'000'000);
  server.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    std::string text = header + std::string(20'000, '\0');
    answer = {206,
              {{"Content-Range", "bytes " + std::to_string(ask.first) + "-" +
                                     std::to_string(ask.last) + "/" + total}},
              text.substr(size_t(ask.first), size_t(ask.length()))};
  });
  const Error error = error_of([&] { open_far(server.url("/y.npy")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("claims"), std::string::npos) << error.what();
  EXPECT_EQ(error.where(), server.url("/y.npy"));
}

// The same with a zip archive's directory of 60 GB.
TEST_F(StoreArrays, AClaimedDirectoryCostsNoMemory) {
  constexpr uint64_t kTotal = 70'000'000'000, kTail = 22 + 0xffff;
  const auto number = [](uint64_t value, size_t bytes) {
    return testing::raw(std::vector<uint64_t>{value}).substr(0, bytes);
  };
  std::string tail = number(0x06064b50, 4) + std::string(36, '\0') + number(60'000'000'000, 8) +
                     number(600, 8);  // the 64-bit end: the directory's size and place
  tail.resize(kTail - 22 - 20);
  tail += number(0x07064b50, 4) + number(0, 4) + number(kTotal - kTail, 8) + number(1, 4);
  tail += number(0x06054b50, 4) + std::string(18, '\0');
  server.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    answer = {404, {}, ""};
    if (ask.first >= 512 && ask.first < kTotal - kTail) return;
    answer = {206, {}, std::string(size_t(ask.length()), '\0')};
    if (ask.first > 0)
      answer.body = tail.substr(size_t(ask.first - (kTotal - kTail)), ask.length());
    answer.headers["Content-Range"] = StoreServer::content_range(ask.first, ask.last, kTotal);
  });
  const Error error = error_of([&] { open_far("npz:" + server.url("/a.npz")); });
  EXPECT_NE(error.reason().find("404"), std::string::npos) << error.what();
  EXPECT_EQ(server.asks().back().first, 600u);
}

TEST_F(StoreArrays, DamagedPartsOfAnArchiveAreFetchedAgain) {
  for (const bool deflates : {false, true}) {
    testing::ZipText zip(deflates);
    zip.add("x.npy", testing::npy("<u2", "300, 20", testing::noise_text(12'000)));
    zip.add("y.npy", testing::npy("<i8", "300,", testing::raw(std::vector<int64_t>(300, 1))));
    put("a.npz", zip.text());
    const auto seen = std::make_shared<std::set<std::pair<uint64_t, uint64_t>>>();
    const auto mutex = std::make_shared<std::mutex>();
    server.tamper([=](const HttpAsk& ask, HttpAnswer& answer) {
      const std::lock_guard lock(*mutex);
      if (ask.last < 512 || !seen->insert({ask.first, ask.last}).second) return;
      for (char& c : answer.body) c ^= 0x55;
    });
    expect_same("npz:" + (folder / "a.npz"), "npz:" + server.url("/a.npz"));
    EXPECT_FALSE(seen->empty());
  }
}

}  // namespace
}  // namespace saturate
