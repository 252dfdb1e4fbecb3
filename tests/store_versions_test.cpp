// A source names the versions of the objects that it was opened from.
#include <gtest/gtest.h>

#include <map>

#include "data/export.h"
#include "saturate/data/input.h"
#include "store/sha256.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::StoreServer;
using testing::TempDir;

class StoreVersions : public ::testing::Test {
 protected:
  StoreVersions() {
    testing::write_folder_dataset(folder / "images", 12);
    for (const char* name : {"a.shard", "b.shard", "c.tar"}) {
      const std::string file = folder / name;
      PackOptions options;
      options.out = (file.ends_with(".tar") ? "tar:" : "shard:") + file;
      pack_dataset(env(), *open_dataset(env(), "folder:" + (folder / "images")), options);
      server.put("/" + std::string(name), testing::read_text(file));
    }
  }
  std::map<std::string, std::string> versions(const std::string& uri) {
    std::map<std::string, std::string> found;
    for (const ObjectVersion& version : open_dataset(env(), uri)->versions())
      EXPECT_TRUE(found.emplace(version.name, version.digest).second) << version.name;
    return found;
  }

  TempDir folder;
  StoreServer server;
};

TEST_F(StoreVersions, AnObjectThatWasReplacedHasAnotherDigest) {
  const std::string uri = "shard:" + server.url("/a.shard") + "," + server.url("/b.shard");
  const auto before = versions(uri);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(versions(uri), before);
  server.put("/b.shard", testing::read_text(folder / "b.shard"), "\"2\"");
  const auto after = versions(uri);
  const std::string a = server.url("/a.shard"), b = server.url("/b.shard");
  EXPECT_EQ(after.at(a), before.at(a));
  EXPECT_NE(after.at(b), before.at(b));
}

// So checkpoints have it.
TEST_F(StoreVersions, TheDigestOfAWeakETagIsThatWithItsMark) {
  const std::string text = testing::read_text(folder / "a.shard");
  server.put("/a.shard", text, "W/\"1\"");
  EXPECT_EQ(versions("shard:" + server.url("/a.shard")).at(server.url("/a.shard")),
            version_digest(std::to_string(text.size()) + "\nW/\"1\"\n"));
}

TEST_F(StoreVersions, AreThoseOfEverySourceAndOfWhatWrapsIt) {
  const auto archive = versions("tar:" + server.url("/c.tar"));
  EXPECT_EQ(archive.size(), 1u);
  EXPECT_EQ(versions("split:train,1/3,tar:" + server.url("/c.tar")), archive);
  EXPECT_EQ(versions(server.url("/c.tar?X-Amz-Signature=1&X-Amz-Expires=60")), archive)
      << "a signature is another one each time";
  DataOptions options;
  options.cache.mode = CacheMode::kRam;
  options.cache.gb = 1;
  options.decode = DecodeMode::kFast;
  options.index.mode = IndexMode::kOff;
  const auto input = open_input(env(), "tar:" + server.url("/c.tar"), options);
  ASSERT_EQ(input->versions().size(), 1u);
  EXPECT_EQ(input->versions()[0].digest, archive.begin()->second);
  EXPECT_TRUE(versions("shard:" + (folder / "a.shard")).empty()) << "of local files none";
}

}  // namespace
}  // namespace saturate
