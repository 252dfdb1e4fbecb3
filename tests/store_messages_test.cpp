// Messages about servers that do not serve the object, and about sources that are not as meant.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "store/bucket_list.h"
#include "store/object_store.h"
#include "store/upload.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::StoreServer;

class StoreMessages : public ::testing::Test {
 protected:
  StoreMessages() { server.put("/a", std::string(1'000, 'x')); }

  Error opening(const std::string& url) {
    ObjectStore store(env(), {}, quick_tuning());
    return error_of([&] { store.open(url); });
  }
  void expect(const Error& error, const std::string& reason, const std::string& remedy) {
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find(remedy), std::string::npos) << error.what();
  }

  StoreServer server;
};

TEST_F(StoreMessages, OfRepliesThatAreNotTheObject) {
  struct Case {
    HttpAnswer answer;
    const char *reason, *remedy;
  };
  const std::string body(512, 'x');
  const std::string range = StoreServer::content_range(0, 511, 1'000);
  const Case cases[] = {
      {{206, {}, body}, "answered 206 without Content-Range", "proxies"},
      {{206, {{"Content-Range", "bytes 0-511/*"}}, body},
       "does not tell the object's size: it answered with \"bytes 0-511/*\"",
       "copy the file to a disk"},
      {{206, {{"Content-Range", "bytes 0-511/18446744073709551615"}}, body},
       "with the range \"bytes 0-511/18446744073709551615\"",
       "Check the server"},
      {{200, {{"x-goog-stored-content-encoding", "gzip"}}, body},
       "is stored with Content-Encoding: gzip",
       "Upload it again"},
      {{206, {{"Content-Range", range}, {"Content-Encoding", "gzip"}}, body},
       "sent compressed bytes (Content-Encoding: gzip), which are not those of the object",
       "Switch compression off"},
      {{200, {{"Content-Encoding", "br"}}, body}, "(Content-Encoding: br)", "without"},
      {{200, {{"Content-Type", "text/html; charset=utf-8"}}, "<html>log in</html>"},
       "a web page instead of the object, perhaps of a login",
       "browser"},
      {{416, {}, ""}, "416 to a request for the first bytes: the object may be empty", "Check"},
      {{302, {{"Location", "file:///etc/passwd"}}, ""},
       "redirects to file://, which is not an http(s):// URL",
       "Check the URL"}};
  for (const Case& one : cases) {
    server.tamper([&](const HttpAsk&, HttpAnswer& answer) { answer = one.answer; });
    const Error error = opening(server.url("/a"));
    expect(error, one.reason, one.remedy);
    EXPECT_EQ(error.reason().find("changed"), std::string::npos) << error.what();
  }
}

// Each by a read and by a list.
TEST_F(StoreMessages, OfDeniedAccessToABucket) {
  struct Case {
    int status;
    const char *code, *region, *reason, *remedy;
  };
  const Case cases[] = {
      {403, "RequestTimeTooSkewed", "", "access is denied", "Set this machine's clock"},
      {403, "AccessDenied", "", "access is denied", "Check AWS_ACCESS_KEY_ID"},
      {403, "InvalidObjectState", "", "403 InvalidObjectState", "Restore the object"},
      {400, "InvalidToken", "us-east-1", "access is denied", "renew AWS_ACCESS_KEY_ID"},
      {400, "InvalidRequest", "us-east-1", "400 InvalidRequest", "Check the URL"},
      {400, "InvalidRequest", "eu-west-1", "is in region eu-west-1", "AWS_REGION=eu-west-1"}};
  const testing::TempDir home;
  const testing::BucketVariables variables(home.path(), server.url(""));
  const auto expect_both = [&](const std::string& reason, const std::string& remedy) {
    expect(opening("s3://bucket/a"), reason, remedy);
    ObjectStore store(env(), {}, quick_tuning());
    BucketList list(store.calls(), locate_bucket(env(), "s3://bucket/x/"), "s3://bucket/x/");
    expect(error_of([&] { list.each_page("x/", true, [](ListPage&&) {}); }), reason, remedy);
  };
  for (const auto& [status, code, region, reason, remedy] : cases) {
    HttpAnswer denial{status, {}, "<Error><Code>" + std::string(code) + "</Code></Error>"};
    if (*region) denial.headers["x-amz-bucket-region"] = region;
    server.tamper([&](const HttpAsk&, HttpAnswer& answer) { answer = denial; });
    expect_both(reason, remedy);
  }
  server.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {403, {}, "<Error><Code>AccessDenied</Code></Error>"};
  });
  const testing::ScopedVariable none[] = {{"AWS_ACCESS_KEY_ID", nullptr},
                                          {"AWS_SECRET_ACCESS_KEY", nullptr},
                                          {"AWS_CONTAINER_CREDENTIALS_FULL_URI", nullptr},
                                          {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr},
                                          {"AWS_EC2_METADATA_DISABLED", "true"}};
  const std::string unsigned_remedy =
      "no keys that may be sent there were found, so the request was not signed";
  expect_both("access is denied", unsigned_remedy);
  const auto store = std::make_shared<ObjectStore>(env(), StoreOptions{}, quick_tuning());
  expect(error_of([&] { Upload(store, "s3://bucket/a"); }), "access is denied", unsigned_remedy);
}

// Objects that were uploaded in chunks may keep the name of that form.
TEST_F(StoreMessages, ChunksOfAnUploadAreNoCompression) {
  server.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer.headers["Content-Encoding"] = "aws-chunked";
  });
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(store.open(server.url("/a"))->size, 1'000u);
}

// Sends the same bytes on each connection, whatever it receives.
class RawServer {
 public:
  explicit RawServer(std::string answer) : answer_(std::move(answer)) {}
  ~RawServer() {
    ended_ = true;
    ::shutdown(port_.listener(), SHUT_RDWR);
    thread_.join();
  }
  std::string host() const { return "127.0.0.1:" + std::to_string(port_.number()); }

 private:
  void serve() {
    for (int connection;
         !ended_ && (connection = ::accept(port_.listener(), nullptr, nullptr)) >= 0;
         ::close(connection)) {
      char buffer[4096];
      if (::recv(connection, buffer, sizeof buffer, 0) > 0)
        ::send(connection, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    }
  }

  const std::string answer_;
  const testing::TakenPort port_;
  std::atomic<bool> ended_{false};
  std::thread thread_{[this] { serve(); }};
};

TEST_F(StoreMessages, OfThePortOfTheOtherScheme) {
  const RawServer plain("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  expect(opening("https://" + plain.host() + "/a"), "does not speak TLS at this port",
         "Write http://");
  const RawServer tls({"\x15\x03\x03\0\x02\x02\x16", 7});  // an alert
  expect(opening("http://" + tls.host() + "/a"), "does not speak HTTP at this port",
         "Write https://");
}

TEST_F(StoreMessages, OfTheProfilesBundleWithoutACertificate) {
  const RawServer tls("");
  const testing::TempDir home;
  const testing::BucketVariables variables(home.path(), "https://" + tls.host());
  const testing::ScopedVariable not_given("AWS_CA_BUNDLE", nullptr);
  const std::string bundle = home / "bundle.pem";
  testing::write_file(bundle, "no certificate\n");
  testing::write_file(home / ".aws/config", "[default]\nca_bundle = " + bundle + "\n");
  expect(opening("s3://bucket/a"), bundle, "ca_bundle of the profile");
}

TEST_F(StoreMessages, OfAProxyThatRefuses) {
  const testing::ScopedVariable plain("http_proxy", server.url("").c_str());
  const testing::ScopedVariable tls("https_proxy", server.url("").c_str());
  for (const int status : {403, 407}) {
    server.tamper([status](const HttpAsk&, HttpAnswer& answer) { answer = {status, {}, ""}; });
    expect(opening("https://store.test/a"), "the proxy answered " + std::to_string(status),
           "Check https_proxy");
  }
  expect(opening("http://store.test/a"), "the proxy answered 407", "Check https_proxy");
  EXPECT_EQ(server.asks().size(), 3u) << "none is tried again";
}

// More than 256 KiB of them, and less than libcurl's own limit.
TEST_F(StoreMessages, OfHeadersWithoutAnEnd) {
  server.tamper([](const HttpAsk&, HttpAnswer& answer) {
    for (int i = 1'000; i < 3'600; ++i)
      answer.headers["x-" + std::to_string(i)] = std::string(100, 'x');
  });
  expect(opening(server.url("/a")), "headers without an end", "Check the server");
  EXPECT_EQ(server.asks().size(), 1u);
}

TEST_F(StoreMessages, OfSourcesThatAreNotAsMeant) {
  const auto opened = [&](const std::string& uri) {
    return error_of([&] { open_dataset(env(), uri); });
  };
  server.put("/empty", "");
  expect(opened("tokens:" + server.url("/empty")), "holds no tokens", "upload it again");
  for (const std::string value : {"", "x"})
    expect(opened("tar:" + server.url("/a,labels=") + value),
           "tar: has no option labels=", "list sources");
  EXPECT_EQ(opened("tar:" + server.url("/a,labels=x")).where(), server.url("/a"));
  EXPECT_EQ(opened("tokens:" + server.url("/a?Signature=secret,context=x")).where(),
            server.url("/a"));
  const Error braces = opened("tar:" + server.url("/{a,b}.tar?Signature=secret"));
  expect(braces, "braces expand to numbers only", "{000..003}");
  EXPECT_EQ(braces.where(), server.url("/{a,..."));
}

}  // namespace
}  // namespace saturate
