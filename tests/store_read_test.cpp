// Objects read by ranges from a server that fails, lies and redirects.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "saturate/data/error.h"
#include "store/object_store.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::noise_text;
using testing::quick_tuning;
using testing::StoreServer;

constexpr size_t kReadSize = 200'000;

StoreOptions within(double seconds) {
  StoreOptions options;
  options.timeout_s = seconds;
  return options;
}

std::string read_range(ObjectStore& store, const ObjectStore::ObjectPtr& object, uint64_t offset,
                       size_t length) {
  std::vector<std::byte> out(length);
  store.read(object, offset, out);
  return testing::to_text(out);
}

void ignore_range(HttpAnswer& answer) {
  answer.status = 200;
  answer.headers.erase("Content-Range");
}

class StoreRead : public ::testing::Test {
 protected:
  StoreRead() { server.put("/a", text); }
  const std::string text = noise_text(kReadSize);
  StoreServer server;
};

TEST_F(StoreRead, AsksForTheRangesThatAreReadAndNoOthers) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/a"));
  EXPECT_EQ(object->size, kReadSize);
  EXPECT_EQ(read_range(store, object, 10'000, 5'000), text.substr(10'000, 5'000));
  EXPECT_EQ(read_range(store, object, kReadSize - 1, 1), text.substr(kReadSize - 1));
  EXPECT_EQ(read_range(store, object, 100, 50), text.substr(100, 50)) << "of the first bytes";
  EXPECT_EQ(read_range(store, object, 50'000, 0), "");
  const auto asks = server.asks();
  ASSERT_EQ(asks.size(), 3u);
  EXPECT_EQ(server.bytes_asked("/a").size(), 512u + 5'000 + 1);
  const Error error = error_of([&] { read_range(store, object, kReadSize - 5, 6); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(server.asks().size(), 3u) << "nothing is asked for past the end";
}

TEST_F(StoreRead, ALongReadIsDivided) {
  StoreTuning tuning = quick_tuning();
  tuning.read_bytes = 30'000;
  ObjectStore store(env(), {}, tuning);
  EXPECT_EQ(read_range(store, store.open(server.url("/a")), 0, kReadSize), text);
  for (const HttpAsk& ask : server.asks()) EXPECT_LE(ask.length(), 30'000u);
}

TEST_F(StoreRead, SmallAndEmptyObjects) {
  server.put("/small", "abc");
  server.put("/empty", "");
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(read_range(store, store.open(server.url("/small")), 1, 2), "bc");
  EXPECT_EQ(store.open(server.url("/empty"))->size, 0u);
  // A server that ignores ranges sends what was asked for, if that is the whole object.
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    answer = {200, {{"ETag", "\"1\""}}, ask.path == "/small" ? "abc" : ""};
  });
  const size_t before = server.asks().size();
  const auto small = store.open(server.url("/small"));
  EXPECT_EQ(small->size, 3u);
  EXPECT_EQ(small->etag, "\"1\"");
  EXPECT_EQ(read_range(store, small, 1, 2), "bc");
  EXPECT_EQ(store.open(server.url("/empty"))->size, 0u);
  EXPECT_EQ(server.asks().size(), before + 2);
}

TEST_F(StoreRead, AWholeObjectInsteadOfARangeIsGood) {
  server.put("/small", text.substr(0, 2'000));
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/small"));
  server.tamper([](const HttpAsk&, HttpAnswer& answer) { ignore_range(answer); });
  EXPECT_EQ(read_range(store, object, 0, 2'000), text.substr(0, 2'000));
  EXPECT_EQ(server.asks().size(), 2u);
}

// `rclone serve s3` does so.
TEST_F(StoreRead, ARangeMayBeAnsweredWith200) {
  server.tamper([](const HttpAsk&, HttpAnswer& answer) { answer.status = 200; });
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/a"));
  EXPECT_EQ(object->size, kReadSize);
  EXPECT_EQ(read_range(store, object, 10'000, 5'000), text.substr(10'000, 5'000));
  EXPECT_EQ(server.asks().size(), 2u);
}

// An attempt after one that has stalled waits longer.
TEST_F(StoreRead, AServerMayTakeLongUntilItsFirstByte) {
  server.tamper([](const HttpAsk&, HttpAnswer&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3'000));
  });
  StoreTuning tuning = quick_tuning();
  tuning.stall_s = 1;
  ObjectStore store(env(), within(60), tuning);
  EXPECT_EQ(store.open(server.url("/a"))->size, kReadSize);
  EXPECT_GE(store.counts().retries, 1u);
}

struct BadReply {
  const char* name;
  void (*apply)(const HttpAsk&, HttpAnswer&);
};
void PrintTo(const BadReply& fault, std::ostream* out) {
  *out << fault.name;
}

class PassingFault : public ::testing::TestWithParam<BadReply> {};

// The first two replies to each request are bad.
TEST_P(PassingFault, IsTriedAgain) {
  StoreServer server;
  const std::string text = noise_text(kReadSize);
  server.put("/a", text);
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.number < 2 || ask.number == 3 || ask.number == 4) GetParam().apply(ask, answer);
  });
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/a"));
  EXPECT_EQ(read_range(store, object, 20'000, 9'000), text.substr(20'000, 9'000));
  EXPECT_EQ(server.asks().size(), 6u);
  EXPECT_GE(store.counts().retries, 3u) << "libcurl repeats one of a kept connection";
}

INSTANTIATE_TEST_SUITE_P(
    Store, PassingFault,
    ::testing::Values(
        BadReply{"unavailable",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {503, {}, "busy"};
                 }},
        BadReply{"throttled",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {429, {{"Retry-After", "0"}}, ""};
                 }},
        BadReply{"slow_down",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {400, {}, "<Code>SlowDown</Code>"};
                 }},
        BadReply{"damaged_on_the_way",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {400, {}, "<Code>BadDigest</Code>"};
                 }},
        BadReply{"ignored_range", [](const HttpAsk&, HttpAnswer& a) { ignore_range(a); }},
        BadReply{"reset", [](const HttpAsk&, HttpAnswer& a) { a.reset = true; }},
        BadReply{"short_body",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a.claimed = a.body.size();
                   a.body.resize(a.body.size() / 2);
                 }},
        BadReply{"shorter_than_the_range",
                 [](const HttpAsk&, HttpAnswer& a) { a.body.pop_back(); }},
        BadReply{"long_body", [](const HttpAsk&, HttpAnswer& a) { a.body += "more"; }},
        BadReply{"other_range",
                 [](const HttpAsk& ask, HttpAnswer& a) {
                   a.headers["Content-Range"] =
                       StoreServer::content_range(ask.first + 1, ask.last + 1, kReadSize);
                 }},
        BadReply{"no_range",
                 [](const HttpAsk&, HttpAnswer& a) { a.headers.erase("Content-Range"); }}),
    [](const auto& fault) { return std::string(fault.param.name); });

class LastingLie : public ::testing::TestWithParam<BadReply> {};

TEST_P(LastingLie, IsAnErrorThatNamesTheObject) {
  StoreServer server;
  server.put("/a", noise_text(kReadSize));
  ObjectStore store(env(), within(60), quick_tuning());
  const auto object = store.open(server.url("/a"));
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) { GetParam().apply(ask, answer); });
  const Error error = error_of([&] { read_range(store, object, 50'000, 1'000); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun) << "data.on_error=skip must not skip it";
  EXPECT_EQ(error.where(), server.url("/a"));
  EXPECT_LE(server.asks().size(), 7u) << error.what();
  EXPECT_LE(store.counts().bytes, 4096u + 5 * 1'000);
}

INSTANTIATE_TEST_SUITE_P(
    Store, LastingLie,
    ::testing::Values(
        BadReply{"endless", [](const HttpAsk&, HttpAnswer& a) { a.endless = true; }},
        BadReply{"long_body", [](const HttpAsk&, HttpAnswer& a) { a.body += "more"; }},
        BadReply{"other_range",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a.headers["Content-Range"] = StoreServer::content_range(0, 999, kReadSize);
                 }},
        BadReply{"other_range_with_200",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a.status = 200;
                   a.headers["Content-Range"] = StoreServer::content_range(0, 999, kReadSize);
                 }},
        BadReply{"huge_numbers",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a.headers["Content-Range"] = "bytes 0-18446744073709551615/18446744073709551616";
                 }},
        BadReply{"no_ranges", [](const HttpAsk&, HttpAnswer& a) { ignore_range(a); }},
        BadReply{"endless_without_ranges",
                 [](const HttpAsk&, HttpAnswer& a) {
                   ignore_range(a);
                   a.endless = true;
                 }},
        BadReply{"changed", [](const HttpAsk&, HttpAnswer& a) { a.headers["ETag"] = "\"2\""; }},
        BadReply{"grown",
                 [](const HttpAsk& ask, HttpAnswer& a) {
                   a.headers["Content-Range"] =
                       StoreServer::content_range(ask.first, ask.last, kReadSize + 1);
                 }},
        BadReply{"shrunk",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {416, {}, ""};
                 }},
        BadReply{"gone",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {404, {}, ""};
                 }},
        BadReply{"to_a_file",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {302, {{"Location", "file:///etc/passwd"}}, ""};
                 }},
        BadReply{"in_circles",
                 [](const HttpAsk&, HttpAnswer& a) {
                   a = {302, {{"Location", "/a"}}, ""};
                 }}),
    [](const auto& fault) { return std::string(fault.param.name); });

TEST_F(StoreRead, AChangedObjectIsNamedAsSuch) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/a"));
  server.put("/a", noise_text(kReadSize, 2), "\"2\"");
  const Error error = error_of([&] { read_range(store, object, 50'000, 10); });
  EXPECT_NE(error.reason().find("has changed"), std::string::npos) << error.what();
}

TEST_F(StoreRead, MissingAndForbiddenObjectsAreErrorsOfTheData) {
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(error_of([&] { store.open(server.url("/none")); }).kind(), ErrorKind::kData);
  server.tamper([](const HttpAsk&, HttpAnswer& a) { a = {403, {}, ""}; });
  EXPECT_EQ(error_of([&] { store.open(server.url("/a")); }).kind(), ErrorKind::kData);
  EXPECT_EQ(server.asks().size(), 2u) << "neither is tried again";
}

TEST_F(StoreRead, AStoreThatStaysAwayIsOneErrorWithinTheLimit) {
  ObjectStore store(env(), within(0.2), quick_tuning());
  const auto object = store.open(server.url("/a"));
  server.tamper([](const HttpAsk&, HttpAnswer& a) { a = {503, {}, ""}; });
  const Error error = error_of([&] { read_range(store, object, 50'000, 10); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("503"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find("resume"), std::string::npos);
  EXPECT_GT(store.counts().retries, 3u);
}

TEST_F(StoreRead, HoweverLongTheServerAsksToWaitTheLastAttemptIsWithinTheLimit) {
  ObjectStore store(env(), within(0.3), quick_tuning());
  const auto object = store.open(server.url("/a"));
  server.tamper([](const HttpAsk&, HttpAnswer& a) { a = {503, {{"Retry-After", "86400"}}, ""}; });
  const size_t before = server.asks().size();
  const Error error = error_of([&] { read_range(store, object, 50'000, 10); });
  EXPECT_NE(error.reason().find("503"), std::string::npos) << error.what();
  EXPECT_EQ(server.asks().size(), before + 2) << error.what();
}

TEST_F(StoreRead, AServerThatStartsLateIsWaitedFor) {
  const int port = testing::free_port();
  const std::string url = "http://127.0.0.1:" + std::to_string(port) + "/late";
  ObjectStore store(env(), {}, quick_tuning());
  std::optional<StoreServer> late;
  std::thread starter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    late.emplace(port);
    late->put("/late", "text");
  });
  ObjectStore::ObjectPtr object;
  try {
    object = store.open(url);
  } catch (const Error&) {  // between the server's start and put()
  }
  starter.join();
  if (!object) object = store.open(url);
  EXPECT_EQ(object->size, 4u);
}

TEST_F(StoreRead, ARedirectWithinTheHostIsFollowedAndItsTargetKept) {
  server.put("/moved", "");
  server.tamper([](const HttpAsk& ask, HttpAnswer& a) {
    if (ask.path == "/moved") a = {307, {{"Location", "/a?signature=secret"}}, ""};
  });
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open(server.url("/moved"));
  EXPECT_EQ(read_range(store, object, 60'000, 10), text.substr(60'000, 10));
  EXPECT_EQ(object->name, server.url("/moved"));
  ASSERT_EQ(server.asks().size(), 3u) << "the second read goes there directly";
}

TEST_F(StoreRead, ARedirectToAnotherHostIsRefused) {
  StoreServer other;
  other.put("/a", text);
  server.tamper([&](const HttpAsk&, HttpAnswer& a) {
    a = {302, {{"Location", other.url("/a?signature=secret")}}, ""};
  });
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open(server.url("/a")); });
  EXPECT_NE(error.reason().find(server.host() + " redirects to http://" + other.host() + ","),
            std::string::npos)
      << error.what();
  EXPECT_NE(error.remedy().find("Write the URL that it redirects to"), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
  EXPECT_EQ(other.asks().size(), 0u);
}

// S3 answers 403 AccessDenied, Google 400 ExpiredToken.
TEST_F(StoreRead, APresignedUrlThatHasExpiredIsToBeSignedAgain) {
  const std::pair<int, const char*> answers[] = {{403, "AccessDenied"}, {400, "ExpiredToken"}};
  for (const char* query : {"X-Amz-Date=20260101T000000Z&X-Amz-Expires=60", "x-goog-expires=60",
                            "Expires=1700000000&Signature=secretsecret"}) {
    for (const auto& [status, code] : answers) {
      server.tamper([&, status = status, code = code](const HttpAsk&, HttpAnswer& a) {
        a = {status, {}, "<Error><Code>" + std::string(code) + "</Code></Error>"};
      });
      ObjectStore store(env(), {}, quick_tuning());
      const Error error = error_of([&] { store.open(server.url("/a?") + query); });
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(error.reason().find("signed for a limited time"), std::string::npos)
          << error.what();
      EXPECT_NE(error.remedy().find("Sign it again"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("secretsecret"), std::string::npos);
    }
  }
}

TEST_F(StoreRead, AQueryStaysOutOfMessages) {
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open(server.url("/none?X-Amz-Signature=secret")); });
  EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
  EXPECT_NE(server.asks()[0].head.find("?X-Amz-Signature=secret"), std::string::npos);
}

TEST_F(StoreRead, BadUrlsAreErrorsOfUsage) {
  ObjectStore store(env(), {}, quick_tuning());
  for (const char* url : {"http://", "http:///x", "http://user:password@host/x", "http://host/a b",
                          "s3://", "s3://bucket", "s3://b/x", "s3://bu cket/x", "s3://bucket/\n"}) {
    const Error error = error_of([&] { store.open(url); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << url;
    EXPECT_EQ(std::string(error.what()).find("user:"), std::string::npos);
  }
}

TEST_F(StoreRead, AServerThatIgnoresRangesIsNamed) {
  server.tamper([](const HttpAsk&, HttpAnswer& answer) { ignore_range(answer); });
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open(server.url("/a")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(std::string(error.what()).find(" ignores ranges"), std::string::npos) << error.what();
  EXPECT_EQ(server.asks().size(), 4u);
}

// The first request for a range is never answered; the second one is.
TEST_F(StoreRead, ALateReplyIsReplacedByASecondRequest) {
  ObjectStore store(env(), within(60), quick_tuning());
  const auto object = store.open(server.url("/a"));
  for (uint64_t i = 0; i < 30; ++i) read_range(store, object, 10'000 + i * 100, 100);
  std::atomic<int> seen{0};
  // Shared: the server looks at it until it ends.
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  server.tamper([&seen, ended](const HttpAsk& ask, HttpAnswer&) {
    if (ask.first == 90'000 && seen++ == 0) testing::wait_for([&] { return ended->load(); });
  });
  EXPECT_EQ(read_range(store, object, 90'000, 100), text.substr(90'000, 100));
  *ended = true;
  EXPECT_EQ(seen, 2);
  EXPECT_GE(store.counts().second, 1u);
  EXPECT_EQ(store.counts().retries, 0u);
}

}  // namespace
}  // namespace saturate
