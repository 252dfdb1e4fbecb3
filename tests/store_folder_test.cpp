// folder: over a listed bucket, against the same files on disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "data/far_images.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "store/store_env.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::FakeBucket;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::parameter;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::StoreServer;
using testing::TempDir;

constexpr int64_t kMinute = 60'000'000'000;  // ns

class StoreFolder : public ::testing::Test {
 protected:
  StoreFolder() {
    testing::write_folder_dataset(images, 40);
    // Names that sort differently as whole paths and by folder, hidden ones, and other files.
    for (const char* name :
         {"even/b/1.jpg", "even/b-c/2.jpg", "even/b.jpg", "even/\u00e4 +%&<.png.jpg",
          "odd/.x/3.jpg", "odd/.4.jpg", "odd/5.txt", ".hidden/6.jpg", "beside.jpg"})
      testing::write_file(images + "/" + name, testing::noise_jpeg(9, 8, 77));
    for (const auto& file : std::filesystem::recursive_directory_iterator(images))
      if (file.is_regular_file())
        bucket.put("data/train" + file.path().string().substr(images.size()),
                   testing::read_text(file.path()));
    bucket.put("data/train/even/", "");      // as a console makes a folder
    bucket.put("data/train-2/no.jpg", "x");  // of another folder
    here = open_dataset(env(), "folder:" + images);
  }

  std::unique_ptr<Dataset> open(const std::string& uri = "folder:s3://bucket/data/train") {
    StoreEnv with_store(env(), std::make_shared<ObjectStore>(env(), options, quick_tuning()));
    return open_dataset(with_store, uri);
  }
  Error opening_error() {
    return error_of([&] { open(); });
  }
  size_t lists() const {
    return size_t(std::ranges::count_if(
        server.asks(), [](const HttpAsk& ask) { return parameter(ask, "list-type") == "2"; }));
  }
  // Every list is answered so.
  void answer_lists(const std::function<std::string(const HttpAsk&)>& body) {
    bucket.tamper([body](const HttpAsk& ask, HttpAnswer& answer) {
      if (parameter(ask, "list-type") == "2")
        answer = {200, {}, "<ListBucketResult>" + body(ask) + "</ListBucketResult>"};
    });
  }
  static std::string item(const std::string& key) {
    return "<Contents><Key>" + key + "</Key><ETag>e</ETag><Size>3</Size></Contents>";
  }
  static std::string folder_item(const std::string& key) {
    return "<CommonPrefixes><Prefix>" + key + "</Prefix></CommonPrefixes>";
  }
  static std::string next_page(const std::string& token) {
    return "<IsTruncated>true</IsTruncated><NextContinuationToken>" + token +
           "</NextContinuationToken>";
  }

  TempDir folder;
  const std::string images = folder / "images";
  FakeBucket bucket;
  StoreServer& server = bucket.server;
  const testing::BucketVariables variables{folder.path(), server.url("")};
  StoreOptions options;
  std::unique_ptr<Dataset> here;
};

std::string epoch_of(const Dataset& data, int threads) {
  LoaderOptions options;
  options.batch = 8;
  options.threads = threads;
  options.type = PixelType::kUint8;
  AugmentOptions augment;
  augment.size = 8;
  augment.crop = CropKind::kRandomResized;
  return testing::epochs_of(data, options, augment);
}

TEST_F(StoreFolder, HasTheSamplesOfTheLocalFolderInItsOrder) {
  for (const size_t page : {1'000, 3}) {
    bucket.page = page;
    const auto there = open();
    ASSERT_EQ(there->size(), here->size());
    EXPECT_EQ(there->classes(), here->classes());
    Sample a, b;
    for (size_t i = 0; i < here->size(); ++i) {
      here->read(i, a);
      there->read(i, b);
      EXPECT_EQ(b.name, "s3://bucket/data/train" + a.name.substr(images.size()));
      EXPECT_EQ(b.bytes, a.bytes) << a.name;
      EXPECT_EQ(b.label, a.label);
      EXPECT_EQ(there->bytes(i), here->bytes(i));
    }
    EXPECT_EQ(there->warning(),
              "an image beside the class folders is not read: s3://bucket/data/train/beside.jpg");
    EXPECT_EQ(epoch_of(*there, 3), epoch_of(*here, 1));
  }
}

TEST_F(StoreFolder, OpeningNeedsNoRequestForAnObject) {
  const auto there = open();
  EXPECT_EQ(server.asks().size(), 3u) << "the folders, and those of two classes";
  EXPECT_EQ(server.asks().size(), lists());
  const size_t before = server.asks().size();
  epoch_of(*there, 2);
  const auto asks = server.asks();
  EXPECT_EQ(asks.size() - before, 2 * there->size()) << "one for each sample";
  uint64_t needed = 0, asked = 0;
  for (size_t i = 0; i < there->size(); ++i) needed += 2 * there->bytes(i);
  for (size_t i = before; i < asks.size(); ++i) asked += asks[i].length();
  EXPECT_EQ(asked, needed);
}

TEST_F(StoreFolder, OtherWaysToNameIt) {
  for (const char* uri : {"folder:s3://bucket/data/train/", "s3://bucket/data/train/"})
    EXPECT_EQ(open(uri)->size(), here->size()) << uri;
  EXPECT_EQ(open("split:held,1/4,folder:s3://bucket/data/train")->size(), here->size() / 4);
}

TEST_F(StoreFolder, PartsOfASetAreNotClasses) {
  for (const char* key : {"parts/train/a/1.jpg", "parts/val/a/2.jpg"}) bucket.put(key, "x");
  const Error error = error_of([&] { open("folder:s3://bucket/parts"); });
  EXPECT_EQ(error.remedy(), "Name one part, as folder:s3://bucket/parts/train");
}

TEST_F(StoreFolder, AWebServerDoesNotList) {
  const Error error = error_of([&] { open("folder:" + server.url("/images?signature=secret")); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.remedy().find("shard:URL"), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
}

TEST_F(StoreFolder, AMissingFolderAndAClassWithoutImagesAreErrors) {
  EXPECT_EQ(error_of([&] { open("folder:s3://bucket/none"); }).kind(), ErrorKind::kData);
  bucket.put("data/train/empty/readme.txt", "x");
  const Error error = opening_error();
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), "s3://bucket/data/train/empty/");
}

TEST_F(StoreFolder, DeniedAccessAndAnotherRegionAreNamed) {
  bucket.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {403, {}, "<Error><Code>AccessDenied</Code></Error>"};
  });
  EXPECT_NE(opening_error().reason().find("access is denied"), std::string::npos);
  bucket.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {301, {{"x-amz-bucket-region", "eu-north-1"}}, ""};
  });
  EXPECT_EQ(opening_error().remedy(), "Set AWS_REGION=eu-north-1");
  bucket.tamper([&](const HttpAsk&, HttpAnswer& answer) {
    answer = {307, {{"Location", "http://127.0.0.1:1/"}}, ""};
  });
  EXPECT_NE(opening_error().reason().find("redirect"), std::string::npos);
}

TEST_F(StoreFolder, PassingFaultsAreTriedAgain) {
  bucket.page = 5;
  bucket.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.number % 3 == 0) answer = {503, {}, "<Error><Code>SlowDown</Code></Error>"};
    if (ask.number % 7 == 1) answer.reset = true;
  });
  EXPECT_EQ(epoch_of(*open(), 3), epoch_of(*here, 1));
}

// Sooner than a range.
TEST_F(StoreFolder, APageThatStallsIsAskedForAgain) {
  std::atomic<bool> has_stalled{false};
  bucket.tamper([&](const HttpAsk& ask, HttpAnswer&) {
    if (parameter(ask, "prefix") != "data/train/even/" || has_stalled.exchange(true)) return;
    const auto is_again = [&](const HttpAsk& other) {
      return other.number > ask.number && parameter(other, "prefix") == parameter(ask, "prefix");
    };
    testing::wait_for([&] { return std::ranges::any_of(server.asks(), is_again); });
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(open()->size(), here->size());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_F(StoreFolder, KeysThatWereNotAskedForAreErrors) {
  for (const std::string& foreign :
       {item("data/other/x.jpg"), item("etc/passwd"), item(""), folder_item("data/train/a/b/"),
        folder_item("data/train/"), folder_item("data/train/a"), folder_item("secret/"),
        item("data/train/" + std::string(2'000, 'x'))}) {
    answer_lists([&](const HttpAsk&) { return foreign; });
    const Error error = opening_error();
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find("was not asked for"), std::string::npos) << error.what();
  }
}

// Nothing outside the folder is read: such names are hidden ones, which are ignored.
TEST_F(StoreFolder, KeysWithDotsLeadNowhere) {
  answer_lists([](const HttpAsk& ask) {
    if (parameter(ask, "delimiter") == "/")
      return folder_item("data/train/../") + folder_item("data/train/a/");
    return item("data/train/a/../../secret.jpg") + item("data/train/a/./b.jpg") +
           item("data/train/a//c.jpg") + item("data/train/a/x.jpg");
  });
  const auto there = open();
  EXPECT_EQ(there->classes(), std::vector<std::string>{"a"});
  ASSERT_EQ(there->size(), 1u);
  bucket.put("data/train/a/x.jpg", "abc");
  Sample sample;
  try {
    there->read(0, sample);
  } catch (const Error&) {  // the list gave another ETag
  }
  EXPECT_EQ(server.asks().back().path, "/bucket/data/train/a/x.jpg");
}

TEST_F(StoreFolder, ListsWithoutAnEndAreErrors) {
  int count = 0;
  const std::vector<std::function<std::string(const HttpAsk&)>> endless{
      // The same page again and again, with the same token, and with others.
      [](const HttpAsk&) { return folder_item("data/train/a/") + next_page("t"); },
      [&](const HttpAsk&) {
        return folder_item("data/train/a/") + next_page("t" + std::to_string(count++));
      },
      // Two pages in turns.
      [](const HttpAsk& ask) {
        return parameter(ask, "continuation-token") == "a"
                   ? folder_item("data/train/b/") + next_page("b")
                   : folder_item("data/train/a/") + next_page("a");
      },
      // Pages without keys.
      [&](const HttpAsk&) { return next_page("t" + std::to_string(count++)); },
      // One class whose list does not end.
      [&](const HttpAsk& ask) {
        return parameter(ask, "delimiter") == "/"
                   ? folder_item("data/train/a/")
                   : item("data/train/a/x.jpg") + next_page("t" + std::to_string(count++));
      }};
  for (const auto& body : endless) {
    answer_lists(body);
    const Error error = opening_error();
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find("no end"), std::string::npos) << error.what();
  }
}

TEST_F(StoreFolder, ListsThatContradictThemselvesAreErrors) {
  const auto in_class = [&](const std::string& items) {
    answer_lists([items](const HttpAsk& ask) {
      return parameter(ask, "delimiter") == "/" ? folder_item("data/train/a/") : items;
    });
    return opening_error();
  };
  EXPECT_NE(
      in_class(item("data/train/a/x.jpg") + item("data/train/a/x.jpg")).reason().find("twice"),
      std::string::npos);
  EXPECT_NE(in_class("<Contents><Key>data/train/a/x.jpg</Key><Size>99999999999</Size></Contents>")
                .reason()
                .find("claims"),
            std::string::npos);
  EXPECT_NE(in_class("<IsTruncated>true</IsTruncated>").reason().find("does not say where"),
            std::string::npos);
  answer_lists(
      [](const HttpAsk&) { return folder_item("data/train/a/") + folder_item("data/train/a/"); });
  EXPECT_NE(opening_error().reason().find("twice"), std::string::npos);
}

TEST_F(StoreFolder, AnEndlessReplyIsCutOff) {
  bucket.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {200, {}, std::string(1 << 16, ' ')};
    answer.endless = true;
  });
  EXPECT_NE(opening_error().reason().find("sent more than"), std::string::npos);
}

TEST_F(StoreFolder, AnObjectThatHasChangedSinceItWasListedIsAnError) {
  const auto there = open();
  bucket.put("data/train/even/00002.jpg", testing::noise_jpeg(12, 12, 3));
  Sample sample;
  const Error error = error_of([&] {
    for (size_t i = 0; i < there->size(); ++i) there->read(i, sample);
  });
  EXPECT_NE(error.reason().find("has changed"), std::string::npos) << error.what();
  EXPECT_EQ(error.where(), "s3://bucket/data/train/even/00002.jpg");
}

TEST_F(StoreFolder, ListAndImagesAreKeptOnDisk) {
  options.cache_dir = folder / "cache";
  options.cache_gb = 1;
  const std::string expected = epoch_of(*here, 1);
  EXPECT_EQ(epoch_of(*open(), 2), expected);  // closing it writes what is pending
  const size_t before = server.asks().size();
  EXPECT_EQ(epoch_of(*open(), 3), expected);
  EXPECT_EQ(server.asks().size(), before);
  // A damaged list is made again.
  for (const auto& file : std::filesystem::directory_iterator(folder / "cache/lists"))
    testing::write_file(file.path(), testing::read_text(file.path()) + "x");
  EXPECT_EQ(open()->size(), here->size());
  EXPECT_EQ(lists(), 6u);
}

// Else the next run would meet the same error, for an hour.
TEST_F(StoreFolder, AKeptListIsRemovedIfAnObjectIsAnotherOne) {
  options.cache_dir = folder / "cache";
  const auto there = open();
  bucket.put("data/train/even/00002.jpg", testing::noise_jpeg(12, 12, 3));
  Sample sample;
  const auto read_all = [&](const Dataset& data) {
    for (size_t i = 0; i < data.size(); ++i) data.read(i, sample);
  };
  EXPECT_NE(error_of([&] { read_all(*there); }).reason().find("has changed"), std::string::npos);
  read_all(*open());
  EXPECT_EQ(lists(), 6u);
}

TEST_F(StoreFolder, AListWithoutETagsIsEnough) {
  answer_lists([](const HttpAsk& ask) {
    return parameter(ask, "delimiter") == "/"
               ? folder_item("data/train/a/")
               : "<Contents><Key>data/train/a/x.jpg</Key><Size>3</Size></Contents>";
  });
  const auto there = open();
  bucket.put("data/train/a/x.jpg", "abc");
  bucket.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer.headers["Last-Modified"] = "Wed, 25 Nov 2026 13:44:45 GMT";
  });
  Sample sample;
  there->read(0, sample);
  EXPECT_EQ(testing::to_text(sample.bytes), "abc");
}

TEST_F(StoreFolder, AKeptListIsUsedForAnHour) {
  FarImages images;
  images.classes = {"a", "b"};
  images.text = "a/x.jpg\"e\"b/y.jpg";
  images.images = {{5, 0, 0, 7, 3}, {6, 10, 1, 7, 0}};
  images.outside = 1;
  images.first_outside = "z.jpg";
  const int64_t made = 1'000 * kMinute;
  const auto file = to_list_file(images, "place", made);
  for (const int64_t age : {int64_t{0}, 59 * kMinute}) {
    const auto again = from_list_file(file, "place", made + age);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->key(1), "b/y.jpg");
    EXPECT_EQ(again->etag(0), "\"e\"");
    EXPECT_EQ(again->classes, images.classes);
    EXPECT_EQ(again->first_outside, "z.jpg");
  }
  EXPECT_FALSE(from_list_file(file, "place", made + 61 * kMinute));
  EXPECT_FALSE(from_list_file(file, "place", made - kMinute)) << "the clock was set back";
  EXPECT_FALSE(from_list_file(file, "other", made));
  for (size_t i = 0; i < file.size(); ++i) {
    auto bad = file;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(from_list_file(bad, "place", made)) << i;
    EXPECT_FALSE(from_list_file(std::span(file).first(i), "place", made)) << i;
  }
}

}  // namespace
}  // namespace saturate
