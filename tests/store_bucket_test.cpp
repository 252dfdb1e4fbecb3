// A bucket of moto's and of rclone's S3 server, which check signatures: `make s3-test` runs these
// with tests/s3_server.py, which sets AWS_ENDPOINT_URL and the keys, and SATURATE_S3_SERVER.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/export.h"
#include "store/bucket_list.h"
#include "store/sha256.h"
#include "store/store_env.h"
#include "store/store_url.h"
#include "store/upload.h"
#include "store/xml.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::noise_text;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::TempDir;

class StoreS3Bucket : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("SATURATE_S3_SERVER")) GTEST_SKIP() << "make s3-test runs it";
    store = std::make_shared<ObjectStore>(env(), StoreOptions(), quick_tuning());
  }
  std::unique_ptr<Dataset> open(const std::string& uri) {
    StoreEnv with_store(env(), store);
    return open_dataset(with_store, uri);
  }
  void write(const std::string& url, const std::string& text) {
    Upload upload(store, url);
    upload.append(std::as_bytes(std::span(text)));
    upload.close();
  }
  std::string read(const std::string& url) {
    const auto object = store->open(url);
    std::vector<std::byte> bytes(object->size);
    store->read(object, 0, bytes);
    return testing::to_text(bytes);
  }
  size_t uploads() {
    HttpCall call;
    call.name = "test";
    call.is_signed = true;
    call.request.most = 1 << 20;
    const StoreLocation bucket = locate_bucket(env(), "s3://bucket").bucket;
    call.request.url = bucket.url + "?uploads=";
    call.request.region = bucket.region;
    const std::string text = text_of(store->calls().call(call));
    size_t count = 0;
    for (size_t at = 0; (at = text.find("<UploadId>", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  std::shared_ptr<ObjectStore> store;
};

TEST_F(StoreS3Bucket, ObjectsAreWrittenWholeAndInParts) {
  StoreTuning tuning = quick_tuning();
  tuning.part_bytes = 5 << 20;  // S3's least
  store = std::make_shared<ObjectStore>(env(), StoreOptions(), tuning);
  for (const size_t size : {size_t{1'000}, size_t{13} << 20}) {
    const std::string url = "s3://bucket/written/\u00e4 +" + std::to_string(size);
    const std::string text = noise_text(size);
    write(url, text);
    EXPECT_EQ(read(url), text);
    EXPECT_EQ(error_of([&] { write(url, "x"); }).kind(), ErrorKind::kUsage);
  }
  {
    Upload upload(store, "s3://bucket/unfinished");
    upload.append(std::vector<std::byte>(11 << 20));
    EXPECT_EQ(uploads(), 1u);
  }
  EXPECT_EQ(error_of([&] { store->open("s3://bucket/unfinished"); }).kind(), ErrorKind::kData);
  write("s3://bucket/unfinished", "small");
  EXPECT_EQ(uploads(), 0u) << "the parts of the first attempt are removed";
}

TEST_F(StoreS3Bucket, AnUnfinishedUploadIsContinued) {
  StoreTuning tuning = quick_tuning();
  tuning.part_bytes = 5 << 20;
  store = std::make_shared<ObjectStore>(env(), StoreOptions(), tuning);
  const std::string url = "s3://bucket/continued", text = noise_text(13 << 20);
  const StoreLocation object = locate_object(env(), url);
  const auto send = [&](const std::string& method, const std::string& query,
                        const std::string& body) {
    HttpCall call;
    call.name = "test";
    call.is_signed = true;
    call.request.method = method;
    call.request.url = object.url + query;
    call.request.region = object.region;
    call.request.most = 1 << 20;
    const auto bytes = std::as_bytes(std::span(body));
    call.request.headers = {"Content-Type: application/octet-stream"};
    call.request.body_hash = sha256_hex(bytes);
    call.request.body = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    const HttpReply reply = store->calls().call(call);
    require_good(call, reply, "write the object");
    return text_of(reply);
  };
  const std::string id = xml_value(send("POST", "?uploads=", ""), "UploadId", "test");
  send("PUT", "?partNumber=2&uploadId=" + encode_query(id), text.substr(5 << 20, 5 << 20));
  ::testing::internal::CaptureStderr();
  write(url, text);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("kept 5.2 MB"), std::string::npos) << printed;
  EXPECT_EQ(read(url), text);
  EXPECT_EQ(uploads(), 0u);
}

TEST_F(StoreS3Bucket, AFolderIsListedAndPackedBackIntoTheBucket) {
  TempDir folder;
  testing::write_folder_dataset(folder / "images", 30);
  const auto here = open_dataset(env(), "folder:" + (folder / "images"));
  Sample sample;
  for (size_t i = 0; i < here->size(); ++i) {
    here->read(i, sample);
    write("s3://bucket/some images" + sample.name.substr((folder / "images").size()),
          testing::to_text(sample.bytes));
  }
  const auto there = open("folder:s3://bucket/some images");
  ASSERT_EQ(there->size(), here->size());
  PackOptions options;
  options.verify = true;
  for (const std::string& out : {"shard:" + (folder / "a"), std::string("shard:s3://bucket/a")}) {
    options.out = out;
    StoreEnv with_store(env(), store);
    pack_dataset(with_store, *there, options);
  }
  EXPECT_EQ(read("s3://bucket/a"), testing::read_text(folder / "a"));
}

// 1,000 keys are a page; the server's script has put 1,005.
TEST_F(StoreS3Bucket, AListOfSeveralPages) {
  BucketList list(store->calls(), locate_bucket(env(), "s3://bucket/pages/"), "test");
  size_t keys = 0, pages = 0, folders = 0;
  list.each_page("pages/", false, [&](ListPage&& page) {
    keys += page.objects.size();
    ++pages;
  });
  list.each_page("pages/", true, [&](ListPage&& page) { folders += page.folders.size(); });
  EXPECT_EQ(keys, 1'005u);
  EXPECT_EQ(pages, 2u);
  EXPECT_EQ(folders, 2u);
}

TEST_F(StoreS3Bucket, AWebIdentityGetsKeysOfTheRole) {
  if (!std::getenv("SATURATE_S3_ROLE")) GTEST_SKIP() << "rclone has no roles";
  TempDir folder;
  testing::write_file(folder / "token", "token");
  write("s3://bucket/of-role", "text");
  const ScopedVariable key("AWS_ACCESS_KEY_ID", nullptr), secret("AWS_SECRET_ACCESS_KEY", nullptr);
  const ScopedVariable token("AWS_WEB_IDENTITY_TOKEN_FILE", (folder / "token").c_str());
  const ScopedVariable role("AWS_ROLE_ARN", std::getenv("SATURATE_S3_ROLE"));
  store = std::make_shared<ObjectStore>(env(), StoreOptions(), quick_tuning());
  EXPECT_EQ(read("s3://bucket/of-role"), "text");
}

}  // namespace
}  // namespace saturate
