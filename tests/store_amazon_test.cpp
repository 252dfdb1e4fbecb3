// Buckets of Amazon's: in other regions than the one that is set, with old names, and those whose
// readers pay.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "saturate/data/error.h"
#include "store/bucket_list.h"
#include "store/bucket_region.h"
#include "store/object_store.h"
#include "store/store_url.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::StoreServer;

TEST(BucketRegion, ChangesOnlyAmazonsHosts) {
  std::string url = "https://unit-bucket.s3.us-east-1.amazonaws.com/a?uploads=";
  std::string region = "us-east-1";
  EXPECT_FALSE(note_region(url, region, "")) << "no region is named";
  const std::vector<std::string> others = {
      "https://minio.example/unit-bucket/a", "https://s3.us-east-1.amazonaws.com.example/x/a",
      "https://s3.us-east-1.amazonaws.com", "https://s3.us-west-2.amazonaws.com/unit-bucket/a"};
  for (const std::string& other : others)
    EXPECT_FALSE(note_region(other, region, "eu-west-1")) << other;
  EXPECT_TRUE(note_region(url, region, "cn-north-1"));
  for (std::string other : others) {
    const std::string before = other;
    move_to_region(other, region);
    EXPECT_EQ(other, before);
  }
  move_to_region(url, region);
  EXPECT_EQ(url, "https://unit-bucket.s3.cn-north-1.amazonaws.com.cn/a?uploads=");
  EXPECT_EQ(region, "cn-north-1");
}

// The server is the proxy to Amazon's hosts. Each test has its own bucket: the process remembers
// their regions.
class StoreAmazon : public ::testing::Test {
 protected:
  static std::string address(const std::string& region, const std::string& key) {
    return "http://s3." + region + ".amazonaws.com/" + key;
  }
  // Answers requests to hosts of all other regions so.
  void live_in(const std::string& region, const HttpAnswer& elsewhere) {
    server.tamper([region, elsewhere](const HttpAsk& ask, HttpAnswer& answer) {
      if (!ask.path.starts_with(address(region, ""))) answer = elsewhere;
    });
  }
  size_t asks_of(const std::string& region) const {
    const auto asks = server.asks();
    return size_t(std::ranges::count_if(
        asks, [&](const HttpAsk& ask) { return ask.path.starts_with(address(region, "")); }));
  }

  testing::TempDir home;
  StoreServer server;
  const testing::BucketVariables variables{home.path(), "http://s3.us-east-1.amazonaws.com"};
  const ScopedVariable proxy{"http_proxy", server.url("").c_str()};
  const HttpAnswer redirect{
      301, {{"x-amz-bucket-region", "eu-west-1"}}, "<Error><Code>PermanentRedirect</Code></Error>"};
};

TEST_F(StoreAmazon, ObjectsAreReadInTheRegionOfTheirBucket) {
  const std::string text = testing::noise_text(10'000);
  for (const char* key : {"moved-bucket/a", "moved-bucket/b"})
    server.put(address("eu-west-1", key), text);
  live_in("eu-west-1", redirect);
  ObjectStore store(env(), {}, quick_tuning());
  for (const std::string name : {"a", "b"}) {
    const auto object = store.open("s3://moved-bucket/" + name);
    std::vector<std::byte> out(100);
    store.read(object, 5'000, out);
    EXPECT_EQ(testing::to_text(out), text.substr(5'000, 100));
  }
  EXPECT_LE(asks_of("us-east-1"), 1u) << "the region is remembered";
  EXPECT_EQ(asks_of("eu-west-1"), 4u);
  EXPECT_NE(server.asks().back().head.find("/eu-west-1/s3/aws4_request"), std::string::npos);
}

TEST_F(StoreAmazon, ListsAreReadInTheRegionOfTheBucket) {
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    const bool is_there = ask.path.starts_with(address("eu-west-1", ""));
    answer = {is_there ? 200 : 400, {}, "<Error><Code>AuthorizationHeaderMalformed</Code>"};
    answer.body += "<Region>eu-west-1</Region></Error>";
    if (is_there)
      answer.body =
          "<ListBucketResult><Contents><Key>x/1</Key><Size>3</Size></Contents></ListBucketResult>";
  });
  ObjectStore store(env(), {}, quick_tuning());
  BucketList list(store.calls(), locate_bucket(env(), "s3://listed-bucket/x/"), "test");
  size_t objects = 0;
  list.each_page("x/", false, [&](ListPage&& page) { objects += page.objects.size(); });
  EXPECT_EQ(objects, 1u);
}

TEST_F(StoreAmazon, RegionsThatNameEachOtherAreAnError) {
  server.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    const bool is_east = ask.path.starts_with(address("us-east-1", ""));
    answer = {301, {{"x-amz-bucket-region", is_east ? "eu-west-1" : "us-east-1"}}, ""};
  });
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open("s3://lost-bucket/a"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.reason().find("the bucket is in region"), std::string::npos) << error.what();
  EXPECT_EQ(server.asks().size(), size_t(kMostMoves) + 1);
}

// Garage names its region only in the body.
TEST_F(StoreAmazon, TheRegionOfAnotherStoreIsNamed) {
  const ScopedVariable endpoint("AWS_ENDPOINT_URL", server.url("").c_str());
  server.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {
        400, {}, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>garage</Region></Error>"};
  });
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_EQ(error_of([&] { store.open("s3://bucket/a"); }).remedy(), "Set AWS_REGION=garage");
  EXPECT_EQ(server.asks().size(), 1u);
}

TEST_F(StoreAmazon, ReadersPayIfTheySaySo) {
  const ScopedVariable endpoint("AWS_ENDPOINT_URL", server.url("").c_str());
  server.put("/bucket/a", "text");
  const auto head = [&] {
    ObjectStore(env(), {}, quick_tuning()).open("s3://bucket/a");
    return server.asks().back().head;
  };
  EXPECT_EQ(head().find("x-amz-request-payer"), std::string::npos);
  const ScopedVariable payer("AWS_REQUEST_PAYER", "requester");
  const std::string paid = head();
  EXPECT_NE(paid.find("x-amz-request-payer: requester"), std::string::npos) << paid;
  EXPECT_NE(paid.find("x-amz-request-payer", paid.find("SignedHeaders=")), std::string::npos);
}

TEST_F(StoreAmazon, OldNamesOfBucketsAreNoNamesOfHosts) {
  const ScopedVariable amazons("AWS_ENDPOINT_URL", nullptr);
  for (const std::string bucket : {"Old-bucket", "old_bucket", "old.bucket"})
    EXPECT_EQ(locate_object(env(), "s3://" + bucket + "/a").url,
              "https://s3.us-east-1.amazonaws.com/" + bucket + "/a");
  const Error error = error_of([] { locate_object(env(), "s3://x--use1-az4--x-s3/a"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.reason().find("S3 Express"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace saturate
