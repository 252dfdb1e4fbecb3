// A server that sends a request's secrets back: they are in no message.
#include <gtest/gtest.h>

#include <set>

#include "data/export.h"
#include "saturate/data/dataset.h"
#include "store/bucket_list.h"
#include "store/object_store.h"
#include "store/server_text.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::StoreServer;

constexpr const char* kKeyId = "AKIAKEYKEYKEYKEYKEY";
constexpr const char* kSecretKey = "secret+secret/secretsecretsecretsecret";
const std::string kLongToken = [] {
  std::string token = "tokenTOKEN";
  while (token.size() < 300) token += token;
  return token;
}();
const char* const kToken = kLongToken.c_str();
constexpr const char* kSignature = "signatureSIGNATUREsignature";

class StoreSecrets : public ::testing::Test {
 protected:
  StoreSecrets() { server.put("/bucket/a", std::string(1'000, 'x')); }

  // Every way in which a reply's text may get into an error.
  static std::vector<HttpAnswer> lies(const std::string& secret) {
    const std::string code = "<Error><Code>" + secret + "</Code></Error>";
    return {{403, {}, code},
            {400, {}, code},
            {503, {}, code},
            {206, {{"Content-Range", secret}}, "x"},
            {206, {{"Content-Range", "bytes 0-1/" + secret}}, "x"},
            {301, {{"x-amz-bucket-region", secret}}, code},
            {302, {{"Location", "http://" + secret + ".example/" + secret}}, code},
            {302, {{"Location", "http://" + secret + "@example/"}}, ""},
            {500, {{secret, secret}}, secret}};
  }
  void expect_hidden(const std::string& url, std::initializer_list<const char*> secrets) {
    for (const char* secret : secrets)
      for (const std::string& form : std::set<std::string>{secret, encode_query(secret)})
        for (const HttpAnswer& lie : lies(form)) {
          server.tamper([lie](const HttpAsk&, HttpAnswer& answer) { answer = lie; });
          StoreOptions options;
          options.timeout_s = 0.05;
          ObjectStore store(env(), options, quick_tuning());
          const Error error = error_of([&] { store.open(url); });
          EXPECT_EQ(std::string(error.what()).find(form.substr(0, 20)), std::string::npos)
              << error.what();
          EXPECT_LT(std::string(error.what()).size(), 600u) << error.what();
        }
  }

  StoreServer server;
  const ScopedVariable key{"AWS_ACCESS_KEY_ID", kKeyId};
  const ScopedVariable secret{"AWS_SECRET_ACCESS_KEY", kSecretKey};
  const ScopedVariable token{"AWS_SESSION_TOKEN", kToken};
  const ScopedVariable endpoint{"AWS_ENDPOINT_URL", server.url("").c_str()};
};

TEST_F(StoreSecrets, AreInNoErrorOfARead) {
  expect_hidden("s3://bucket/a", {kKeyId, kSecretKey, kToken});
  expect_hidden(server.url("/bucket/a?X-Amz-Security-Token=") + kToken + "&X-Amz-Credential=" +
                    kKeyId + "&X-Amz-Signature=" + kSignature + "&x=" + encode_query(kSecretKey),
                {kKeyId, kSecretKey, kToken, kSignature});
}

TEST_F(StoreSecrets, AreInNoErrorOfAList) {
  for (const char* echoed : {kKeyId, kSecretKey, kToken}) {
    for (const std::string& body :
         {"<ListBucketResult><Contents><Key>" + std::string(echoed) +
              "</Key><Size>1</Size></Contents></ListBucketResult>",
          "<ListBucketResult><CommonPrefixes><Prefix>" + std::string(echoed) +
              "/</Prefix></CommonPrefixes></ListBucketResult>",
          "<" + std::string(echoed) + ">", "<Error><Code>" + std::string(echoed) + "</Code>"}) {
      for (const int status : {200, 400, 403}) {
        server.tamper([status, body](const HttpAsk&, HttpAnswer& answer) {
          answer = {status, {}, body};
        });
        ObjectStore store(env(), {}, quick_tuning());
        BucketList list(store.calls(), locate_bucket(env(), "s3://bucket/images/"),
                        "s3://bucket/images/");
        const Error error = error_of([&] { list.each_page("images/", true, [](ListPage&&) {}); });
        EXPECT_EQ(std::string(error.what()).find(echoed), std::string::npos) << error.what();
      }
    }
  }
}

TEST_F(StoreSecrets, AShortKeyIdStaysInTheNamesOfObjects) {
  const ScopedVariable id("AWS_ACCESS_KEY_ID", "datascience");
  const std::string name = "images/datascience/1.jpg";
  server.tamper([&](const HttpAsk&, HttpAnswer& answer) {
    answer = {200,
              {},
              "<ListBucketResult><Contents><Key>" + name +
                  "</Key><Size>1</Size></Contents></ListBucketResult>"};
  });
  ObjectStore store(env(), {}, quick_tuning());
  BucketList list(store.calls(), locate_bucket(env(), "s3://bucket/images/"), "images");
  std::vector<std::string> keys;
  list.each_page("images/", false, [&](ListPage&& page) {
    for (const ListedObject& object : page.objects) keys.push_back(object.key);
  });
  EXPECT_EQ(keys, std::vector<std::string>{name});
}

TEST_F(StoreSecrets, AValueOfTheQueryMayBeANumberOfTheHeaders) {
  const std::string text(10'000'000, 'x');
  server.put("/versioned", text, "\"of 20240101\"");
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/versioned?v=20240101&size=10000000"));
  EXPECT_EQ(object->size, text.size());
  EXPECT_EQ(object->etag, "\"of 20240101\"");
}

// Sources that are no data, each with what its error says.
struct BadText {
  const char *text, *error;
};
constexpr BadText kBadTexts[] = {
    {"https://h/a.tar?x=hidden0,hidden0&Signature=hidden0", "%2C"},
    {"https://h/a.tar?Signature=hidden0,sig=hidden0", "%2C"},
    {"s3://b.b/a.tar?X-Amz-Expires=60&X-Amz-Signature=hidden0,hidden0", "with https://"},
    {"gs://bucket/a.tar?x-goog-signature=hidden0", "with https://"},
    {"s3://hidden0:hidden0@bucket/a.tar", "AWS_ACCESS_KEY_ID"},
    {"gs://hidden0:SEC/hidden0@bucket/a.tar", "AWS_SECRET_ACCESS_KEY"},
    {"s3://hidden0:4/hidden0@bucket/a.tar", "AWS_SECRET_ACCESS_KEY"},
    {"s3://hidden0:/hidden0@bucket/a.tar", "AWS_SECRET_ACCESS_KEY"},
    {"http://user:pa,hidden0@h/a.tar", "server that needs none"},
    {"http://hidden0:hidden0@h/a.tar", "server that needs none"},
    {"htps://h/a.tar?hidden0", "unknown scheme \"htps://\""},
    {"gcs://hidden0:hidden0@b/a.tar", "unknown scheme \"gcs://\""},
    {"http:/h/a.tar?hidden0", "unknown scheme \"http:/\""},
    {"s3:/bucket/a.tar?hidden0", "unknown scheme \"s3:/\""},
    {"S3//bucket/a.tar?hidden0", "unknown scheme \"S3//\""},
    {"ftp:hidden0@h/a.tar", "unknown scheme \"ftp:\""},
};

TEST(SecretsOfSources, AreInNoErrorOfTheirText) {
  for (const auto& [text, expected] : kBadTexts) {
    for (const std::string& uri : {text + std::string(), "tar:" + std::string(text),
                                   "split:held,1/2,npy:" + std::string(text)}) {
      const Error error = error_of([&] { open_dataset(env(), uri); });
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      const std::string what = error.what();
      EXPECT_EQ(what.find("hidden0"), std::string::npos) << what;
      EXPECT_NE(what.find(expected), std::string::npos) << what;
    }
  }
}

TEST(SecretsOfSources, AreInNoErrorOfPacking) {
  const auto data = open_dataset(env(), "synth:count=4");
  for (const auto& [text, expected] : kBadTexts) {
    for (const char* format : {"", "shard:", "tar:", "lmdb:"}) {
      PackOptions options;
      options.out = format + std::string(text);
      const Error error = error_of([&] { pack_dataset(env(), *data, options); });
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      EXPECT_EQ(std::string(error.what()).find("hidden0"), std::string::npos) << error.what();
    }
  }
}

TEST(SecretsOfSources, AKeyMayHoldAQuestionMark) {
  EXPECT_EQ(store_name("s3://bucket/what?.tar"), "s3://bucket/what?.tar");
  EXPECT_TRUE(locate_object(env(), "s3://bucket/a?b=1").url.ends_with("/a%3Fb%3D1"));
}

TEST(ServerText, IsShortAndPlain) {
  EXPECT_EQ(plain_text("NoSuchKey", ".", 20), "NoSuchKey");
  EXPECT_EQ(plain_text("NoSuchKey", ".", 5), "");
  EXPECT_EQ(plain_text("No\nKey", ".", 20), "");
  HttpReply reply;
  reply.status = 400;
  const std::string body = "a12345678b12345678";
  for (const char c : body) reply.body.push_back(std::byte(c));
  hide_secrets(reply, {"12345678"});
  EXPECT_EQ(testing::to_text(reply.body), "a***b***");
  EXPECT_EQ(secrets_of("http://a/b?x=1&sig=abcdefgh%2B", {}),
            (std::vector<std::string>{"abcdefgh%2B", "abcdefgh%252B"}));
}

}  // namespace
}  // namespace saturate
