// Archives joined by cat or in a folder, single zero blocks, sparse files, and other bytes after an
// archive's end.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "data/tar_format.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

std::string golden_tar(const std::string& name) {
  return testing::source_path("tests/goldens/tar/" + name + ".tar");
}

class JoinedTars : public ::testing::Test {
 protected:
  std::unique_ptr<Dataset> open(const std::string& text) {
    write_file(path, text);
    return open_dataset(env(), "tar:" + path);
  }
  const std::string one = read_text(golden_tar("ustar")), two = read_text(golden_tar("gnu"));
  const std::unique_ptr<Dataset> first = open_dataset(env(), "tar:" + golden_tar("ustar"));
  const std::unique_ptr<Dataset> second = open_dataset(env(), "tar:" + golden_tar("gnu"));
  TempDir dir;
  const std::string path = dir / "t.tar";
};

// Like GNU tar with -i, and Python's tarfile with ignore_zeros.
TEST_F(JoinedTars, AreAllRead) {
  const auto joined = open(one + two);
  ASSERT_EQ(joined->size(), first->size() + second->size());
  Sample a, b;
  for (size_t i = 0; i < joined->size(); ++i) {
    const bool later = i >= first->size();
    (later ? *second : *first).read(later ? i - first->size() : i, a);
    joined->read(i, b);
    EXPECT_EQ(a.bytes, b.bytes) << b.name;
    EXPECT_EQ(b.name, path + a.name.substr(a.name.find(".tar:") + 4));
  }
}

TEST_F(JoinedTars, ATruncatedLaterArchiveIsAnError) {
  for (const size_t size : {size_t{512}, two.size() / 2}) {
    const Error error = error_of([&] { open(one + two.substr(0, size)); });
    EXPECT_NE(error.reason().find("truncated"), std::string::npos) << error.what();
  }
}

TEST_F(JoinedTars, ASingleZeroBlockIsNotTheEnd) {
  TarScanner scanner(env(), golden_tar("ustar"));
  TarMember member;
  for (size_t zeros = 512; scanner.next(member); zeros += 512) {
    std::string text = one;
    text.insert(member.offset - 512, zeros, '\0');
    EXPECT_EQ(open(text)->size(), first->size()) << member.name;
  }
}

TEST_F(JoinedTars, UnreadBytesAreAnError) {
  for (const std::string& rest : {std::string("x"), std::string(512, 'x'), std::string(5000, 'x'),
                                  std::string(700, '\0') + "x"}) {
    const Error error = error_of([&] { open(one + rest); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.where(), path);
    EXPECT_NE(error.reason().find("left unread"), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("truncate -s"), std::string::npos) << error.what();
  }
  for (const size_t zeros : {size_t{1}, size_t{512}, size_t{3'000'000}})
    EXPECT_EQ(open(one + std::string(zeros, '\0'))->size(), first->size());
}

// A long name without its member must not become the name of the next archive's first member.
TEST_F(JoinedTars, ANameWithoutItsMemberIsAnError) {
  const size_t name = two.find("././@LongLink");
  ASSERT_NE(name, std::string::npos);
  const std::string only_name = two.substr(name, 1024);  // the header, and the name itself
  const Error error = error_of([&] { open(only_name + std::string(1024, '\0') + one); });
  EXPECT_NE(error.reason().find("member that is missing"), std::string::npos) << error.what();
}

// A header of GNU tar, with a map that continues in the next block.
std::string sparse_header(const std::string& name, uint64_t size) {
  std::string block = testing::to_text(make_tar_header(name, size));
  block[156] = 'S';
  block.replace(257, 8, "ustar  \0", 8);
  block[482] = 1;
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  for (size_t i = 0; i < 6; ++i, sum >>= 3) block[153 - i] = char('0' + (sum & 7));
  return block;
}

// tar -S writes the map of a file with more than four holes so; its size does not count it.
TEST_F(JoinedTars, ASparseFileBesideTheImagesIsSkipped) {
  std::string map(1024, '\0');
  map[504] = 1;
  const std::string sparse = map + std::string(512, 'p');
  EXPECT_EQ(open(sparse_header("model.db", 512) + sparse + one)->size(), first->size());
  const Error error = error_of([&] { open(sparse_header("a.jpg", 512) + sparse + one); });
  EXPECT_NE(error.reason().find("sparse file"), std::string::npos) << error.what();
}

TEST(TarFolder, AFolderOfArchivesIsAllOfThem) {
  const TempDir dir;
  for (const char* name : {"b.tar", "a.tar"})
    std::filesystem::copy_file(golden_tar("ustar"), dir / name);
  write_file(dir / "README", "of the archives");
  const size_t one = open_dataset(env(), "tar:" + golden_tar("ustar"))->size();
  for (const std::string& source : {"tar:" + dir.path(), dir.path()}) {
    const auto data = open_dataset(env(), source);
    ASSERT_EQ(data->size(), 2 * one);
    Sample sample;
    data->read(0, sample);
    EXPECT_TRUE(sample.name.starts_with(dir / "a.tar:")) << sample.name;
  }
  std::filesystem::create_directory(dir / "class");
  write_file(dir / "class/1.jpg", "");
  EXPECT_EQ(open_dataset(env(), dir.path())->classes(), std::vector<std::string>{"class"});
  std::filesystem::remove_all(dir / "class");
  for (const char* name : {"a.tar", "b.tar"}) std::filesystem::remove(dir / name);
  EXPECT_EQ(error_of([&] { open_dataset(env(), "tar:" + dir.path()); }).reason(),
            "folder holds no .tar file");
}

}  // namespace
}  // namespace saturate
