// Keys, endpoints and signatures of S3. A server of moto's checks the signatures (make s3-test).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "saturate/data/error.h"
#include "store/credentials.h"
#include "store/object_store.h"
#include "store/store_url.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::noise_text;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::StoreServer;
using testing::TempDir;

// No settings but those of the test.
class StoreS3 : public ::testing::Test {
 protected:
  TempDir home;
  const std::string credentials_file = home / ".aws/credentials";
  const std::string config_file = home / ".aws/config";
  const ScopedVariable variables[21] = {
      {"AWS_EC2_METADATA_DISABLED", "true"},
      {"STORAGE_EMULATOR_HOST", nullptr},
      {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", nullptr},
      {"HOME", home.path().c_str()},
      {"AWS_ACCESS_KEY_ID", nullptr},
      {"AWS_SECRET_ACCESS_KEY", nullptr},
      {"AWS_SESSION_TOKEN", nullptr},
      {"GS_ACCESS_KEY_ID", nullptr},
      {"GS_SECRET_ACCESS_KEY", nullptr},
      {"GS_SESSION_TOKEN", nullptr},
      {"AWS_REQUEST_PAYER", nullptr},
      {"AWS_PROFILE", nullptr},
      {"AWS_DEFAULT_PROFILE", nullptr},
      {"AWS_SHARED_CREDENTIALS_FILE", nullptr},
      {"AWS_CONFIG_FILE", nullptr},
      {"AWS_ENDPOINT_URL", nullptr},
      {"AWS_ENDPOINT_URL_S3", nullptr},
      {"AWS_REGION", nullptr},
      {"AWS_DEFAULT_REGION", nullptr},
      {"AWS_S3_ADDRESSING_STYLE", nullptr},
      {"AWS_WEB_IDENTITY_TOKEN_FILE", nullptr},
  };
};

TEST_F(StoreS3, KeysComeFromTheEnvironmentThenFromTheProfile) {
  EXPECT_FALSE(find_credentials(env()));
  testing::write_file(config_file,
                      "[default]\nregion = eu-west-1\n[profile work]\naws_access_key_id=W\n"
                      "aws_secret_access_key = w=w\nregion=eu-north-1\n");
  EXPECT_FALSE(find_credentials(env())) << "the profile holds none";
  testing::write_file(
      credentials_file,
      "# mine\r\n[default]\r\nAWS_ACCESS_KEY_ID = D\r\naws_secret_access_key = d\r\n"
      "aws_session_token = t\r\n");
  auto found = find_credentials(env());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->key + found->secret + found->token, "Ddt");
  EXPECT_EQ(find_s3_settings(env()).region, "eu-west-1");
  {
    const ScopedVariable profile("AWS_PROFILE", "work");
    EXPECT_EQ(find_credentials(env())->secret, "w=w");
    EXPECT_EQ(find_s3_settings(env()).region, "eu-north-1");
  }
  const ScopedVariable key("AWS_ACCESS_KEY_ID", "E"), secret("AWS_SECRET_ACCESS_KEY", "e");
  EXPECT_EQ(find_credentials(env())->key, "E");
  EXPECT_EQ(find_credentials(env())->token, "") << "the file's token is not of this key";
  EXPECT_EQ(find_credentials(env())->origin, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  const ScopedVariable token("AWS_SESSION_TOKEN", "t");
  EXPECT_EQ(find_credentials(env())->origin,
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN");
}

TEST_F(StoreS3, HalfAKeyAMissingProfileAndAWebIdentityAreErrors) {
  {
    const ScopedVariable key("AWS_ACCESS_KEY_ID", "E");
    EXPECT_EQ(error_of([] { find_credentials(env()); }).kind(), ErrorKind::kUsage);
  }
  {
    const ScopedVariable profile("AWS_DEFAULT_PROFILE", "none");
    const Error error = error_of([] { find_credentials(env()); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "profile none");
  }
  const ScopedVariable token("AWS_WEB_IDENTITY_TOKEN_FILE", "/x");
  EXPECT_EQ(error_of([] { find_credentials(env()); }).kind(), ErrorKind::kUsage);
}

TEST_F(StoreS3, AddressesOfObjects) {
  const auto url = [](const char* of) { return locate_object(env(), of).url; };
  EXPECT_EQ(url("s3://bucket/a b/+\u00e4%.shard"),
            "https://bucket.s3.us-east-1.amazonaws.com/a%20b/%2B%C3%A4%25.shard");
  EXPECT_EQ(url("s3://my.bucket/a"), "https://s3.us-east-1.amazonaws.com/my.bucket/a");
  EXPECT_EQ(url("gs://bucket/a"), "https://storage.googleapis.com/bucket/a");
  {
    const ScopedVariable gcloud("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "https://x.p.y.com/");
    EXPECT_EQ(url("gs://bucket/a b"), "https://x.p.y.com/bucket/a%20b");
    const ScopedVariable emulator("STORAGE_EMULATOR_HOST", "localhost:8081");
    EXPECT_EQ(url("gs://bucket/a"), "http://localhost:8081/bucket/a");
    const ScopedVariable whole("STORAGE_EMULATOR_HOST", "http://localhost:81/storage/v1/");
    EXPECT_EQ(url("gs://bucket/a"), "http://localhost:81/bucket/a");
    for (const char* bad : {"ftp://x", "http://", "http://user@x", "http://x/y"}) {
      const ScopedVariable other("STORAGE_EMULATOR_HOST", bad);
      EXPECT_EQ(error_of([&] { url("gs://bucket/a"); }).kind(), ErrorKind::kUsage) << bad;
    }
  }
  const ScopedVariable region("AWS_REGION", "eu-central-1");
  EXPECT_EQ(url("s3://bucket/a"), "https://bucket.s3.eu-central-1.amazonaws.com/a");
  {
    const ScopedVariable china("AWS_REGION", "cn-north-1");
    EXPECT_EQ(url("s3://bucket/a"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/a");
    EXPECT_EQ(amazon_url("sts", "cn-northwest-1"), "https://sts.cn-northwest-1.amazonaws.com.cn");
  }
  const ScopedVariable endpoint("AWS_ENDPOINT_URL", "http://minio:9000/");
  EXPECT_EQ(url("s3://bucket/a"), "http://minio:9000/bucket/a");
  const ScopedVariable style("AWS_S3_ADDRESSING_STYLE", "virtual");
  EXPECT_EQ(url("s3://bucket/a"), "http://bucket.minio:9000/a");
  const ScopedVariable bad("AWS_S3_ADDRESSING_STYLE", "sideways");
  EXPECT_EQ(error_of([&] { url("s3://bucket/a"); }).kind(), ErrorKind::kUsage);
}

TEST_F(StoreS3, RedirectsStayOnTheHost) {
  EXPECT_TRUE(may_redirect("http://a/x", "http://A/y"));
  EXPECT_TRUE(may_redirect("http://a/x", "https://a/y"));
  EXPECT_FALSE(may_redirect("https://a/x", "https://b/y"));
  EXPECT_FALSE(may_redirect("https://a.b/x", "https://b/y"));
  EXPECT_FALSE(may_redirect("http://a/x", "http://b/y"));
  EXPECT_FALSE(may_redirect("http://a/x", "http://a:81/y"));
  EXPECT_FALSE(may_redirect("https://a/x", "http://a/y"));
  EXPECT_FALSE(may_redirect("http://a/x", "file:///etc/passwd"));
  EXPECT_FALSE(may_redirect("https://a/x", "https://user:password@b/y"));
}

class StoreS3Server : public StoreS3 {
 protected:
  StoreS3Server() {
    server.put("/bucket/a", text);
    write_key("FIRST");
  }
  void write_key(const std::string& name) const {
    testing::write_file(credentials_file, "[default]\naws_access_key_id=" + name +
                                              "KEY\naws_secret_access_key=SECRETSECRET\n"
                                              "aws_session_token=" +
                                              name + "TOKEN\n");
  }
  std::string read_some(ObjectStore& store, const ObjectStore::ObjectPtr& object) const {
    std::vector<std::byte> out(100);
    store.read(object, 50'000, out);
    return testing::to_text(out);
  }
  const std::string text = noise_text(100'000);
  StoreServer server;
  const ScopedVariable endpoint{"AWS_ENDPOINT_URL", server.url("").c_str()};
};

TEST_F(StoreS3Server, RequestsAreSigned) {
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(read_some(store, store.open("s3://bucket/a")), text.substr(50'000, 100));
  for (const HttpAsk& ask : server.asks()) {
    EXPECT_NE(ask.head.find("AWS4-HMAC-SHA256 Credential=FIRSTKEY/"), std::string::npos);
    EXPECT_NE(ask.head.find("/us-east-1/s3/aws4_request"), std::string::npos);
    EXPECT_NE(ask.head.find("FIRSTTOKEN"), std::string::npos);
    for (const char* header :
         {"host;", "x-amz-content-sha256;", "x-amz-date", "x-amz-security-token"})
      EXPECT_NE(ask.head.find(header, ask.head.find("SignedHeaders=")), std::string::npos)
          << header;
    EXPECT_EQ(ask.head.find("SECRET"), std::string::npos);
  }
}

TEST_F(StoreS3Server, WithoutKeysRequestsAreNotSigned) {
  std::filesystem::remove(credentials_file);
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(read_some(store, store.open("s3://bucket/a")), text.substr(50'000, 100));
  EXPECT_EQ(server.asks()[0].head.find("Authorization"), std::string::npos);
}

TEST_F(StoreS3Server, ExpiredKeysAreReadAgain) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.head.find("FIRSTTOKEN") != std::string::npos)
      answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
  });
  const Error error = error_of([&] { read_some(store, object); });
  EXPECT_NE(error.remedy().find("profile default in " + credentials_file), std::string::npos)
      << error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  write_key("SECOND");
  EXPECT_EQ(read_some(store, object), text.substr(50'000, 100));
}

// As MinIO answers for keys that have expired, and Amazon for those that were replaced.
TEST_F(StoreS3Server, KeysThatTheStoreDoesNotKnowAreReadAgain) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  HttpCalls calls(env(), {}, quick_tuning(),
                  std::make_shared<CredentialSource>(env(), StoreOptions(), quick_tuning()));
  HttpCall call;
  call.name = "a call";
  call.is_signed = true;
  call.request.url = server.url("/bucket/a");
  call.request.region = "us-east-1";
  call.request.most = 1'000;
  EXPECT_EQ(calls.call(call).status, 206);
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.head.find("FIRSTTOKEN") != std::string::npos)
      answer = {403, {}, "<Error><Code>InvalidAccessKeyId</Code></Error>"};
  });
  const size_t before = server.asks().size();
  const Error error = error_of([&] { read_some(store, object); });
  EXPECT_NE(error.remedy().find("renew profile default in " + credentials_file), std::string::npos)
      << error.what();
  EXPECT_EQ(calls.call(call).status, 403);
  EXPECT_EQ(server.asks().size(), before + 2) << "the file holds no others";
  write_key("SECOND");
  EXPECT_EQ(read_some(store, object), text.substr(50'000, 100));
  EXPECT_EQ(calls.call(call).status, 206);
}

TEST_F(StoreS3Server, KeysThatAreMissingWhileTheirFileIsRenewedAreWaitedFor) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  server.tamper([this](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.head.find("FIRSTTOKEN") == std::string::npos) return;
    std::filesystem::remove(credentials_file);
    answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
  });
  std::thread renewing([this] {
    testing::wait_for([&] { return !std::filesystem::exists(credentials_file); });
    for (const char* half : {"", "[default]\naws_access_key_id=SECONDKEY\n"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      testing::write_file(credentials_file, half);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    write_key("SECOND");
  });
  EXPECT_EQ(read_some(store, object), text.substr(50'000, 100));
  renewing.join();
  for (const HttpAsk& ask : server.asks())
    EXPECT_NE(ask.head.find("Authorization"), std::string::npos) << ask.head;
}

// A request that was signed with the old keys, and is answered after the new ones were read.
TEST_F(StoreS3Server, ALateReplyToOldKeysDoesNotEndTheNewOnes) {
  StoreOptions options;
  options.timeout_s = 60;
  ObjectStore store(env(), options, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  std::vector<std::byte> out(100);
  for (uint64_t i = 0; i < 30; ++i) store.read(object, 10'000 + i * 100, out);
  // Shared: the server looks at them until it ends.
  struct Seen {
    std::atomic<int> old{0}, fresh{0};
    std::atomic<bool> ended{false};
  };
  const auto seen = std::make_shared<Seen>();
  server.tamper([this, seen](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.first != 50'000) return;
    const auto wait = [&](int requests) {
      testing::wait_for([&] { return seen->fresh >= requests || seen->ended; });
    };
    if (ask.head.find("FIRSTTOKEN") == std::string::npos) {
      ++seen->fresh;
      return wait(2);  // after the late reply
    }
    answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
    if (seen->old++ == 0) return wait(1);
    write_key("SECOND");
  });
  EXPECT_EQ(read_some(store, object), text.substr(50'000, 100));
  seen->ended = true;
  EXPECT_EQ(seen->old, 2);
  EXPECT_EQ(seen->fresh, 2);
}

// A server keeps ".." in a key, and libcurl must not take it for a folder above.
TEST_F(StoreS3Server, DotsInAKeyArePartOfIt) {
  server.put("/bucket/x/../a", "other");
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(store.open("s3://bucket/x/../a")->size, 5u);
}

TEST_F(StoreS3Server, KeysNeverFollowARedirect) {
  StoreServer other;
  other.put("/bucket/a", text);
  server.tamper([&](const HttpAsk&, HttpAnswer& a) {
    a = {307, {{"Location", other.url("/bucket/a")}}, ""};
  });
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open("s3://bucket/a"); });
  EXPECT_NE(error.remedy().find("AWS_ENDPOINT_URL"), std::string::npos);
  for (const char* secret : {"FIRSTKEY", "SECRET", "TOKEN"})
    EXPECT_EQ(std::string(error.what()).find(secret), std::string::npos);
  EXPECT_EQ(other.asks().size(), 0u);
}

TEST_F(StoreS3Server, AnotherRegionIsNamed) {
  server.tamper([](const HttpAsk&, HttpAnswer& a) {
    a = {301, {{"x-amz-bucket-region", "eu-north-1"}}, "<Code>PermanentRedirect</Code>"};
  });
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open("s3://bucket/a"); });
  EXPECT_EQ(error.remedy(), "Set AWS_REGION=eu-north-1");
}

// SATURATE_S3_SERVER: tests/s3_server.py runs the test with a server that checks signatures. Its
// bucket holds "data/a b+\u00e4.shard", the bytes of the file SATURATE_S3_FILE.
TEST(StoreS3OfOthers, AcceptsTheSignaturesAndServesTheRanges) {
  if (!std::getenv("SATURATE_S3_SERVER")) GTEST_SKIP() << "make s3-test runs it";
  const std::string url = "s3://bucket/data/a b+\u00e4.shard";
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(url);
  const std::string expected = testing::read_text(std::getenv("SATURATE_S3_FILE"));
  ASSERT_EQ(object->size, expected.size());
  std::vector<std::byte> out(1'000);
  for (const uint64_t offset : {5'000, 50'000, 99'000}) {
    store.read(object, offset, out);
    EXPECT_EQ(testing::to_text(out), expected.substr(offset, out.size()));
  }
  const ScopedVariable wrong("AWS_SECRET_ACCESS_KEY", "wrong");
  ObjectStore other(env(), {}, quick_tuning());
  const Error error = error_of([&] { other.open(url); });
  EXPECT_NE(error.reason().find("access is denied"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
