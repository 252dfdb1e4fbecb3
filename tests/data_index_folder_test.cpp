// data.index: where its files are, and which of them stay.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/files.h"
#include "data/index_folder.h"
#include "tests/index_testing.h"

namespace saturate {
namespace {

using testing::add_to;
using testing::encode_as;
using testing::epochs_of;
using testing::index_into;
using testing::index_options;
using testing::indexed_files;
using testing::kPhotos;
using testing::TempDir;
using testing::test_picture;
using testing::to_text;
using testing::write_file;
using testing::write_photos;

class CacheFolder {
 public:
  explicit CacheFolder(const std::string& path) {
    if (const char* const value = std::getenv("XDG_CACHE_HOME")) before_ = value;
    setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  ~CacheFolder() {
    before_ ? setenv("XDG_CACHE_HOME", before_->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
  }

 private:
  std::optional<std::string> before_;
};

void set_age(const std::string& path, std::chrono::hours age) {
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
}

TEST(IndexFolder, AutomaticIsInTheCacheFolderByTheSource) {
  const TempDir dir;
  write_photos(dir / "set");
  std::filesystem::create_directory_symlink(dir / "set", dir / "link");
  const CacheFolder cache(dir / "cache");
  Env& env = Env::posix();
  const std::string path = index_path_of(env, "folder:" + (dir / "set"));
  EXPECT_TRUE(path.starts_with(dir / "cache/saturate/index/set-")) << path;
  for (const std::string& same :
       {dir / "set", dir / "set/", dir / "set/../set", "split:train,1/4,folder:" + (dir / "set"),
        std::filesystem::relative(dir / "set").string(), dir / "link"})
    EXPECT_EQ(index_path_of(env, same), path);
  EXPECT_NE(index_path_of(env, "folder:" + (dir / "other")), path);
  EXPECT_NE(index_path_of(env, "tar:" + (dir / "set")), path);
  setenv("XDG_CACHE_HOME", "relative", 1);  // is ignored, as its specification says
  EXPECT_FALSE(index_path_of(env, dir / "set").starts_with("relative"));
}

TEST(IndexFolder, AutomaticIsNotWrittenForAFewFiles) {
  const TempDir dir;
  write_photos(dir / "set");
  const CacheFolder cache(dir / "cache");
  const std::string source = "folder:" + (dir / "set");
  EXPECT_EQ(epochs_of(source, "auto", 2), epochs_of(source, "off", 2));
  EXPECT_FALSE(std::filesystem::exists(dir / "cache"));
  for (int i = 0; i < 500; ++i)
    write_file(dir / "set/c/" + std::to_string(i) + ".jpg",
               to_text(encode_as(test_picture(640 + i, 200), {"", JCS_YCbCr, 1, 1})));
  epochs_of(source, "auto", 1);
  EXPECT_GT(indexed_files(index_path_of(Env::posix(), source)), 500u);
}

// The files of other sources are sparse: they take no room here.
TEST(IndexFolder, FilesNotUsedForLongestAreRemoved) {
  const TempDir dir;
  write_photos(dir / "set");
  const CacheFolder cache(dir / "cache");
  Env& env = Env::posix();
  const std::string path = index_path_of(env, dir / "set"), folder = parent_folder(path);
  const auto add = [&](const char* name, int days) {
    write_file(folder + name, "SATPOINT");
    std::filesystem::resize_file(folder + name, uint64_t{7} << 30);
    set_age(folder + name, std::chrono::hours(24 * days));
  };
  add("/other.txt", 5);
  add("/saving.points", 4);
  add("/old.points", 3);
  add("/new.points", 2);
  const auto saving = env.lock(folder + "/saving.points.lock");
  SourceIndex index(env, path, SourceIndex::Kind::kInCache);
  add_to(index, dir / "set");
  index.save(false);
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
  for (const char* name : {"/other.txt", "/saving.points", "/new.points"})
    EXPECT_TRUE(env.exists(folder + name)) << name;
  for (const char* name : {"/old.points", "/old.points.lock"})
    EXPECT_FALSE(env.exists(folder + name)) << name;
}

TEST(IndexFolder, AnIndexThatIsReadIsUsed) {
  const TempDir dir;
  write_photos(dir / "set");
  const CacheFolder cache(dir / "cache");
  const std::string path = index_path_of(Env::posix(), dir / "set");
  index_into(path, dir / "set");
  set_age(path, std::chrono::hours(48));
  const SourceIndex index(Env::posix(), path, SourceIndex::Kind::kInCache);
  EXPECT_GT(std::filesystem::last_write_time(path),
            std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
}

TEST(IndexFolder, ALinkToAnIndexStaysALink) {
  const TempDir dir;
  write_photos(dir / "one");
  write_file(dir / "two/c/0.jpg", testing::indexed_photo(20));
  std::filesystem::create_directory(dir / "disk");
  std::filesystem::create_symlink(dir / "disk/x.points", dir / "link");  // which is not there yet
  for (const char* const part : {"one", "two"}) {
    index_into(dir / "link", dir / part);
    EXPECT_TRUE(is_link(dir / "link"));
  }
  EXPECT_EQ(indexed_files(dir / "disk/x.points"), size_t(kPhotos) + 1);
  const auto data =
      open_input(Env::posix(), "folder:" + (dir / "one"), index_options(dir / "link"));
  epochs_of(*data, 2);
  EXPECT_EQ(data->source_index()->points()->added(), 0u) << "all points were known";
}

TEST(IndexFolder, AMovedFolderKeepsItsEntries) {
  const TempDir dir;
  write_photos(dir / "set");
  index_into(dir / "x.points", dir / "set");
  std::filesystem::rename(dir / "set", dir / "moved");
  const std::string source = "folder:" + (dir / "moved");
  const auto expected = epochs_of(source, "off", 2);
  const auto data = open_input(Env::posix(), source, index_options(dir / "x.points"));
  EXPECT_EQ(epochs_of(*data, 2), expected);
  EXPECT_EQ(data->source_index()->points()->added(), 0u) << "all points were known";
}

TEST(IndexFolder, AFolderWithoutWritePermissionIsAWarning) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TempDir dir;
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "cache/x.points";
  index_into(path, source);
  write_file(dir / "set/a/20.jpg", testing::indexed_photo(20));
  const auto expected = epochs_of(source, "off", 1);
  using std::filesystem::perms;
  std::filesystem::permissions(dir / "cache", perms::owner_read | perms::owner_exec);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(epochs_of(source, path, 1), expected);
  const std::string said = ::testing::internal::GetCapturedStderr();
  std::filesystem::permissions(dir / "cache", perms::owner_all);
  EXPECT_NE(said.find("cannot be written"), std::string::npos) << said;
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
}

}  // namespace
}  // namespace saturate
