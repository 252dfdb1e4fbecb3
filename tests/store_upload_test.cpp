// Objects written by data pack: in parts, whole or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>

#include "base/cancel.h"
#include "base/text.h"
#include "data/export.h"
#include "store/md5.h"
#include "store/store_env.h"
#include "store/upload.h"
#include "tests/bucket_testing.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::FakeBucket;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::method_of;
using testing::noise_text;
using testing::parameter;
using testing::ScopedVariable;
using testing::StoreServer;
using testing::TempDir;

constexpr uint64_t kPart = 1'000;  // bytes

class StoreUpload : public ::testing::Test {
 protected:
  static StoreTuning tuning() {
    StoreTuning small = testing::quick_tuning();
    small.part_bytes = kPart;
    return small;
  }
  std::shared_ptr<ObjectStore> make_store(double timeout_s = 300) {
    StoreOptions options;
    options.timeout_s = timeout_s;
    return std::make_shared<ObjectStore>(env(), options, tuning());
  }
  void write(const std::string& text, double timeout_s = 300) {
    Upload upload(make_store(timeout_s), "s3://bucket/a/b c");
    // In pieces that are no parts.
    const auto bytes = std::as_bytes(std::span(text));
    for (size_t at = 0; at < bytes.size(); at += 300)
      upload.append(bytes.subspan(at, std::min<size_t>(300, bytes.size() - at)));
    upload.close();
  }
  bool is_there() const { return bucket.objects().contains("a/b c"); }
  static bool is_part(const HttpAsk& ask) { return parameter(ask, "partNumber") != "-"; }
  static std::string part_of(const std::string& text, size_t number) {
    return text.substr((number - 1) * kPart, kPart);
  }
  // Writes, and returns the numbers of the parts that were sent, each once.
  std::multiset<int> parts_sent(const std::string& text) {
    const size_t before = server.asks().size();
    write(text);
    EXPECT_EQ(bucket.objects()["a/b c"], text);
    EXPECT_EQ(bucket.uploads(), 0u);
    std::multiset<int> sent;
    const auto asks = server.asks();
    for (size_t i = before; i < asks.size(); ++i)
      if (is_part(asks[i])) sent.insert(std::stoi(parameter(asks[i], "partNumber")));
    return sent;
  }

  TempDir folder;
  FakeBucket bucket;
  StoreServer& server = bucket.server;
  const testing::BucketVariables variables{folder.path(), server.url("")};
};

TEST_F(StoreUpload, BytesOfAnySizeArrive) {
  for (const size_t size : {0, 1, 999, 1'000, 1'001, 2'000, 12'345}) {
    bucket.clear();
    const std::string text = noise_text(size);
    write(text);
    EXPECT_EQ(bucket.objects()["a/b c"], text) << size;
    EXPECT_EQ(bucket.uploads(), 0u);
  }
}

TEST_F(StoreUpload, RequestsAreSignedWithTheirBodies) {
  write(noise_text(3 * kPart));
  size_t parts = 0;
  for (const HttpAsk& ask : server.asks()) {
    EXPECT_NE(ask.head.find("AWS4-HMAC-SHA256 Credential=KEYKEY/"), std::string::npos);
    EXPECT_EQ(ask.head.find("SECRET"), std::string::npos);
    if (is_part(ask)) {
      EXPECT_NE(ask.head.find("Content-MD5: "), std::string::npos) << ask.head;
    }
    parts += is_part(ask);
  }
  EXPECT_EQ(parts, 3u);
}

TEST_F(StoreUpload, APassingFaultOfEachRequestIsTriedAgain) {
  const std::string text = noise_text(20 * kPart);
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.number % 3 == 0) answer = {503, {}, "<Error><Code>SlowDown</Code></Error>"};
    if (ask.number % 5 == 2) answer = {409, {}, "<Error><Code>OperationAborted</Code></Error>"};
    if (ask.number % 5 == 3)
      answer = {400, {}, "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>"};
    if (ask.number % 7 == 1) answer.reset = true;
  });
  write(text);
  EXPECT_EQ(bucket.objects()["a/b c"], text);
  EXPECT_EQ(bucket.uploads(), 0u) << "those whose replies were lost are removed";
}

TEST_F(StoreUpload, AFailureInTheReplyOfCompletionIsTriedAgain) {
  int count = 0;
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    const bool completes = method_of(ask) == "POST" && parameter(ask, "uploads") == "-";
    // The object is there, and the reply says otherwise: the next attempt finds no upload.
    if (completes && count++ == 0) answer.body = "<Error><Code>InternalError</Code></Error>";
  });
  write(noise_text(3 * kPart));
  EXPECT_TRUE(is_there());
  EXPECT_EQ(count, 2);
}

// The store joins the parts for longer than another request may take.
TEST_F(StoreUpload, CompletionMayTakeLonger) {
  int busy = 20;
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    const bool completes = method_of(ask) == "POST" && parameter(ask, "uploads") == "-";
    if (completes && busy-- > 0) answer = {503, {}, ""};
  });
  const std::string text = noise_text(3 * kPart);
  write(text, 0.01);
  EXPECT_EQ(bucket.objects()["a/b c"], text);
}

// A store may not list uploads, and fail to do so when the object is complete.
TEST_F(StoreUpload, UploadsThatCannotBeListedAreNoError) {
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    if (method_of(ask) != "GET" || parameter(ask, "uploads") == "-") return;
    answer = is_there() ? HttpAnswer{200, {}, "no list"} : HttpAnswer{501, {}, ""};
  });
  write(noise_text(3 * kPart), 0.2);
  EXPECT_TRUE(is_there());
}

TEST_F(StoreUpload, WithoutPermissionToListTheRemedyNamesIt) {
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (method_of(ask) == "GET") answer = {403, {}, "<Error><Code>AccessDenied</Code></Error>"};
  });
  const Error error = error_of([&] { write("new"); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.remedy().find("s3:ListBucket"), std::string::npos) << error.what();
}

TEST_F(StoreUpload, AnExistingObjectIsNotReplaced) {
  bucket.put("a/b c", "old");
  EXPECT_EQ(error_of([&] { write("new"); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(bucket.objects()["a/b c"], "old");
}

TEST_F(StoreUpload, PartsOfWhatIsNotClosedStayAndAreContinuedWith) {
  const std::string text = noise_text(9 * kPart);
  ::testing::internal::CaptureStderr();
  {
    Upload upload(make_store(), "s3://bucket/a/b c");
    upload.append(std::as_bytes(std::span(text)));
  }
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("--bucket bucket --key 'a/b c' --upload-id 'upload 1'"), std::string::npos)
      << printed;
  EXPECT_EQ(bucket.uploads(), 1u);
  EXPECT_FALSE(is_there());
  EXPECT_LT(parts_sent(text).size(), 9u);
}

TEST_F(StoreUpload, ALastingFaultIsAnErrorThatLeavesTheOtherParts) {
  std::atomic<bool> stored{false};
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    if (parameter(ask, "partNumber") != "2") {
      stored = stored || is_part(ask);
      return;
    }
    for (int i = 0; i < 5000 && !stored; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for its reply
    answer = {503, {}, ""};
  });
  EXPECT_EQ(error_of([&] { write(noise_text(9 * kPart), 0.05); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(bucket.uploads(), 1u);
  EXPECT_FALSE(is_there());
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (is_part(ask)) answer.headers.erase("ETag");
  });
  EXPECT_NE(error_of([&] { write(noise_text(9 * kPart, 2)); }).reason().find("ETag"),
            std::string::npos);
  EXPECT_EQ(bucket.uploads(), 1u);
}

TEST_F(StoreUpload, ACancelledUploadOfWhichNoPartArrivedLeavesNothing) {
  std::atomic<bool> asked{false};
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    if (!is_part(ask)) return;
    asked = true;
    answer = {503, {}, ""};
  });
  const CancelScope scope([&] { return asked.load(); });
  const Error error = error_of([&] { write(noise_text(50 * kPart), 86'400); });
  EXPECT_NE(error.reason().find("cancelled"), std::string::npos) << error.what();
  EXPECT_EQ(bucket.uploads(), 0u);
  EXPECT_FALSE(is_there());
}

// The store is gone, and the user waits.
TEST_F(StoreUpload, ACancelledUploadDoesNotWaitLongForTheRemovalOfItsParts) {
  std::atomic<bool> is_gone{false};
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    if (is_part(ask)) is_gone = true;
    if (is_gone) answer = {503, {}, ""};
  });
  const CancelScope scope([&] { return is_gone.load(); });
  ::testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  const Error error = error_of([&] { write(noise_text(50 * kPart), 86'400); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << error.what();
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("Parts of it may remain"), std::string::npos) << printed;
}

TEST(StoreMd5, IsThatOfTheStandard) {
  const std::map<std::string, std::string> known{
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
      {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
       "d174ab98d277d9f5a5611c2c9f419d9f"},
      {std::string(64, 'a'), "014842d480b571495a4a0363793f7367"}};
  for (const auto& [text, digest] : known)
    EXPECT_EQ(md5_hex(std::as_bytes(std::span(text))), digest) << text;
}

TEST(Base64, IsThatOfTheStandard) {
  const std::map<std::string, std::string> known{
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}};
  for (const auto& [text, encoded] : known)
    EXPECT_EQ(base64(std::as_bytes(std::span(text))), encoded);
}

// As a process that was killed leaves it.
TEST_F(StoreUpload, AnUnfinishedUploadIsContinued) {
  const std::string text = noise_text(9 * kPart + 10);
  bucket.page = 2;
  bucket.begin_upload("a/b c");
  bucket.begin_upload("a/b c", {{1, part_of(text, 1)}});
  bucket.begin_upload("a/b c", {{1, part_of(text, 1)},
                                {3, part_of(text, 3)},
                                {4, part_of(text, 5)},  // other bytes
                                {5, "short"},
                                {6, part_of(text, 6)},
                                {10, part_of(text, 10)},
                                {12, part_of(text, 1)}});  // not a part of this object
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(parts_sent(text), (std::multiset<int>{2, 4, 5, 7, 8, 9}));
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("s3://bucket/a/b c: kept 0.0 MB of an earlier"), std::string::npos)
      << printed;
}

TEST_F(StoreUpload, AWholeUploadIsOnlyCompleted) {
  const std::string text = noise_text(2 * kPart);
  bucket.begin_upload("a/b c", {{1, part_of(text, 1)}, {2, part_of(text, 2)}});
  EXPECT_EQ(parts_sent(text), std::multiset<int>());
}

TEST_F(StoreUpload, UnfinishedUploadsOfOtherObjectsStay) {
  bucket.begin_upload("a/b c2", {{1, part_of(noise_text(kPart), 1)}});
  write(noise_text(3 * kPart));
  EXPECT_TRUE(is_there());
  EXPECT_EQ(bucket.uploads(), 1u);
}

TEST_F(StoreUpload, AnUploadInPartsOfAnotherSizeIsRemoved) {
  const std::string text = noise_text(3 * kPart);
  for (const size_t size : {kPart / 2, 2 * kPart}) {
    bucket.clear();
    bucket.begin_upload("a/b c", {{1, text.substr(0, size)}, {2, text.substr(size, size)}});
    EXPECT_EQ(parts_sent(text), (std::multiset<int>{1, 2, 3})) << size;
  }
}

// The object that is written now needs no parts.
TEST_F(StoreUpload, AnUploadOfALargerObjectIsRemoved) {
  bucket.begin_upload("a/b c", {{1, noise_text(kPart)}});
  EXPECT_EQ(parts_sent("small"), std::multiset<int>());
}

// Their ETags are no MD5 (SSE-KMS).
TEST_F(StoreUpload, EncryptedPartsAreSentAgain) {
  const std::string text = noise_text(3 * kPart);
  bucket.begin_upload("a/b c", {{1, part_of(text, 1)}, {2, part_of(text, 2)}});
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (method_of(ask) != "GET" || parameter(ask, "uploadId") == "-") return;
    for (size_t at = 0; (at = answer.body.find("<ETag>", at)) != std::string::npos; ++at)
      std::swap(answer.body[at + 13], answer.body[at + 14]);
  });
  EXPECT_EQ(parts_sent(text), (std::multiset<int>{1, 2, 3}));
}

TEST_F(StoreUpload, PartsThatCannotBeListedAreRemoved) {
  const std::string text = noise_text(3 * kPart);
  bucket.begin_upload("a/b c", {{1, part_of(text, 1)}});
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (method_of(ask) == "GET" && parameter(ask, "uploadId") != "-") answer = {403, {}, ""};
  });
  EXPECT_EQ(parts_sent(text), (std::multiset<int>{1, 2, 3}));
}

TEST_F(StoreUpload, WhatCannotBeWrittenIsAnErrorOfUsage) {
  StoreEnv with_store(env(), make_store());
  for (const std::string& url :
       {server.url("/x"), std::string("s3://bucket/folder/"), std::string("s3://bucket")})
    EXPECT_EQ(error_of([&] { with_store.open_writable(url); }).kind(), ErrorKind::kUsage) << url;
  EXPECT_EQ(error_of([&] { with_store.open_appendable("s3://bucket/x"); }).kind(),
            ErrorKind::kUsage);
}

class StorePack : public StoreUpload {
 protected:
  StorePack() {
    testing::write_folder_dataset(folder / "images", 30);
    images = open_dataset(env(), "folder:" + (folder / "images"));
  }
  PackReport pack(const std::string& out, bool verify = false) {
    StoreEnv with_store(env(), make_store());
    PackOptions options;
    options.out = out;
    options.threads = 2;
    options.verify = verify;
    return pack_dataset(with_store, *images, options);
  }
  std::unique_ptr<Dataset> images;
};

TEST_F(StorePack, WritesTheBytesOfALocalFile) {
  for (const std::string scheme : {"shard", "tar"}) {
    pack(scheme + ":" + (folder / scheme));
    EXPECT_EQ(pack(scheme + ":s3://bucket/out/" + scheme).samples, 30u);
    EXPECT_EQ(bucket.objects()["out/" + scheme], testing::read_text(folder / scheme));
  }
  EXPECT_EQ(error_of([&] { pack("lmdb:s3://bucket/out"); }).kind(), ErrorKind::kUsage);
}

TEST_F(StorePack, VerifyingReadsTheObjectBack) {
  pack("shard:s3://bucket/good", true);
  // The store damages what it keeps: a byte of the first sample.
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (answer.status == 206 && ask.first <= 4'200 && 4'200 <= ask.last)
      answer.body[4'200 - ask.first] ^= 1;
  });
  pack("shard:s3://bucket/unread", false);
  EXPECT_NE(error_of([&] { pack("shard:s3://bucket/bad", true); }).what(), nullptr);
}

TEST_F(StorePack, TensorsAreWrittenAndReadBack) {
  images = open_dataset(env(), "synth-table:count=70");
  pack("shard:" + (folder / "table"));
  pack("shard:s3://bucket/table", true);
  EXPECT_EQ(bucket.objects()["table"], testing::read_text(folder / "table"));
  StoreEnv with_store(env(), make_store());
  const auto far = open_dataset(with_store, "shard:s3://bucket/table");
  EXPECT_EQ(far->tensors(), images->tensors());
  testing::expect_equal(*far, *images);
}

// With parts of one byte there would be more than 10,000.
TEST_F(StorePack, ALargerObjectHasLargerParts) {
  pack("shard:" + (folder / "shard"));
  StoreTuning tiny = tuning();
  tiny.part_bytes = 1;
  StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), StoreOptions(), tiny));
  PackOptions options;
  options.out = "shard:s3://bucket/a";
  pack_dataset(with_store, *images, options);
  EXPECT_EQ(bucket.objects()["a"], testing::read_text(folder / "shard"));
}

TEST_F(StorePack, AFailingSourceLeavesNoObject) {
  testing::write_file(folder / "images/odd/00001.jpg", "");
  std::filesystem::remove(folder / "images/odd/00003.jpg");
  error_of([&] { pack("shard:s3://bucket/out"); });
  EXPECT_TRUE(bucket.objects().empty());
}

}  // namespace
}  // namespace saturate
