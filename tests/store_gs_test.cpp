// gs:// by its S3 interface, with HMAC keys: reading, listing and writing at another endpoint.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/export.h"
#include "saturate/data/error.h"
#include "store/bucket_list.h"
#include "store/credentials.h"
#include "store/store_env.h"
#include "store/upload.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::FakeBucket;
using testing::HttpAsk;
using testing::noise_text;
using testing::parameter;
using testing::ScopedVariable;
using testing::TempDir;

class StoreGoogle : public ::testing::Test {
 protected:
  std::shared_ptr<ObjectStore> make_store() const {
    StoreTuning tuning = testing::quick_tuning();
    tuning.part_bytes = 1'000;
    return std::make_shared<ObjectStore>(env(), StoreOptions(), tuning);
  }
  // Every request is signed for Google's region, whatever Amazon's is.
  void expect_signed() const {
    const auto asks = bucket.server.asks();
    EXPECT_FALSE(asks.empty());
    for (const HttpAsk& ask : asks) {
      EXPECT_NE(ask.head.find("AWS4-HMAC-SHA256 Credential=KEYKEY/"), std::string::npos)
          << ask.head;
      EXPECT_NE(ask.head.find("/auto/s3/aws4_request"), std::string::npos) << ask.head;
      EXPECT_NE(ask.head.find("Host: " + bucket.server.host()), std::string::npos) << ask.head;
    }
  }

  TempDir folder;
  FakeBucket bucket;
  // Amazon's endpoint is none that answers.
  const testing::BucketVariables variables{folder.path(), "http://127.0.0.1:1"};
  const ScopedVariable region{"AWS_REGION", "eu-north-1"};
  const ScopedVariable endpoint{"STORAGE_EMULATOR_HOST", bucket.server.host().c_str()};
};

TEST_F(StoreGoogle, AnObjectIsRead) {
  const std::string text = noise_text(10'000);
  bucket.put("a/b c", text);
  const auto store = make_store();
  const auto object = store->open("gs://bucket/a/b c");
  EXPECT_EQ(object->name, "gs://bucket/a/b c");
  std::vector<std::byte> out(100);
  store->read(object, 5'000, out);
  EXPECT_EQ(testing::to_text(out), text.substr(5'000, 100));
  expect_signed();
}

TEST_F(StoreGoogle, AFolderIsListed) {
  testing::write_folder_dataset(folder / "images", 10);
  const auto here = open_dataset(env(), "folder:" + (folder / "images"));
  Sample a, b;
  for (size_t i = 0; i < here->size(); ++i) {
    here->read(i, a);
    bucket.put("train" + a.name.substr((folder / "images").size()), testing::to_text(a.bytes));
  }
  bucket.page = 3;
  StoreEnv with_store(env(), make_store());
  const auto there = open_dataset(with_store, "folder:gs://bucket/train");
  ASSERT_EQ(there->size(), here->size());
  for (size_t i = 0; i < here->size(); ++i) {
    here->read(i, a);
    there->read(i, b);
    EXPECT_EQ(b.bytes, a.bytes);
    EXPECT_EQ(b.label, a.label);
  }
  expect_signed();
}

TEST_F(StoreGoogle, AnObjectIsWritten) {
  for (const size_t size : {500, 3'500}) {  // in one request, and in parts
    const std::string text = noise_text(size);
    Upload upload(make_store(), "gs://bucket/new/" + std::to_string(size));
    upload.append(std::as_bytes(std::span(text)));
    upload.close();
    EXPECT_EQ(bucket.objects()["new/" + std::to_string(size)], text);
  }
  EXPECT_EQ(bucket.uploads(), 0u);
  expect_signed();
}

// One store may read the buckets of both.
TEST_F(StoreGoogle, ItsOwnKeysComeFirst) {
  bucket.put("a", "text");
  const ScopedVariable amazon("AWS_ENDPOINT_URL", bucket.server.url("").c_str());
  const ScopedVariable key("GS_ACCESS_KEY_ID", "GOOGKEY"), secret("GS_SECRET_ACCESS_KEY", "s");
  const auto store = make_store();
  store->open("gs://bucket/a");
  store->open("s3://bucket/a");
  const auto asks = bucket.server.asks();
  ASSERT_EQ(asks.size(), 2u);
  EXPECT_NE(asks[0].head.find("Credential=GOOGKEY/"), std::string::npos) << asks[0].head;
  EXPECT_NE(asks[1].head.find("Credential=KEYKEY/"), std::string::npos) << asks[1].head;
  const ScopedVariable half("GS_SECRET_ACCESS_KEY", nullptr);
  EXPECT_EQ(testing::error_of([&] { make_store()->open("gs://bucket/a"); }).kind(),
            ErrorKind::kUsage);
}

// Those of other stores, such as MinIO, would deny access to what is public.
TEST_F(StoreGoogle, ItsOwnHostGetsNoOtherKeys) {
  EXPECT_EQ(find_google_credentials(env()).value().key, "KEYKEY") << "of another host";
  const ScopedVariable emulator("STORAGE_EMULATOR_HOST", nullptr),
      other("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", nullptr);
  EXPECT_FALSE(find_google_credentials(env()));
  const ScopedVariable key("AWS_ACCESS_KEY_ID", nullptr), secret("AWS_SECRET_ACCESS_KEY", nullptr);
  const std::string file = folder / ".aws/credentials";
  testing::write_file(file, "[default]\nsso_session = x\n");
  EXPECT_FALSE(find_google_credentials(env())) << "a sign-in to Amazon does not concern it";
  testing::write_file(file, "[default]\naws_access_key_id=GOOG1\naws_secret_access_key=s\n");
  const ScopedVariable identity("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere");
  EXPECT_EQ(find_google_credentials(env()).value().key, "GOOG1");
}

// Amazon's keys, which would deny access to what is public, and are not for Google.
TEST_F(StoreGoogle, KeysOfAmazonAreNotSent) {
  bucket.put("public/a", noise_text(10'000));
  const auto expect_unsigned = [&] {
    const size_t before = bucket.server.asks().size();
    const auto store = make_store();
    EXPECT_EQ(store->open("gs://bucket/public/a")->size, 10'000u);
    BucketList list(store->calls(), locate_bucket(env(), "gs://bucket/public/"), "test");
    list.each_page("public/", false, [](ListPage&&) {});
    const auto asks = bucket.server.asks();
    EXPECT_EQ(asks.size(), before + 2);
    for (size_t i = before; i < asks.size(); ++i)
      for (const char* part : {"KEYKEY", "TOKEN", "Authorization"})
        EXPECT_EQ(asks[i].head.find(part), std::string::npos) << asks[i].head;
  };
  {
    const ScopedVariable token("AWS_SESSION_TOKEN", "TOKENTOKEN");
    expect_unsigned();
  }
  {
    const ScopedVariable key("AWS_ACCESS_KEY_ID", "AKIAKEYKEY");
    expect_unsigned();
  }
  const ScopedVariable key("AWS_ACCESS_KEY_ID", nullptr), secret("AWS_SECRET_ACCESS_KEY", nullptr);
  const ScopedVariable none("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr);
  // A service that would be waited for if it was asked.
  const ScopedVariable role("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/");
  expect_unsigned();
}

}  // namespace
}  // namespace saturate
