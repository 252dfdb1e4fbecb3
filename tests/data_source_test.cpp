#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "saturate/export.h"
#include "saturate/fault_env.h"
#include "saturate/inspect.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::TempDir;
using testing::write_file;

TEST(OpenDataset, UnknownSchemeNamesTheNearest) {
  const Error error = error_of([] { open_dataset(env(), "foldr:/x"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "data.source");
  EXPECT_NE(error.remedy().find("\"folder\""), std::string::npos);
  EXPECT_EQ(error_of([] { open_dataset(env(), "/just/a/path"); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { open_dataset(env(), "folder:"); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { open_dataset(env(), "tar:a.tar,"); }).kind(), ErrorKind::kUsage);
}

// The order of torchvision's ImageFolder: classes sorted, then (folder, file) sorted.
TEST(FolderSource, ListsAsImageFolderDoes) {
  const TempDir dir;
  for (const char* name :
       {"b/2.jpg", "b/10.JPG", "b/x.Jpeg", "b/sub/a.png", "b/sub-a/z.PNG", "b/sub/deep/q.jpeg",
        "B/one.jpg", "b/notes.txt", "b/._2.jpg", ".hidden/1.jpg", "readme.jpg"})
    write_file(dir / name, name);
  const auto dataset = open_dataset(env(), "folder:" + dir.path() + "//");
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"B", "b"}));
  std::vector<std::string> names;
  Sample sample;
  for (size_t i = 0; i < dataset->size(); ++i) {
    dataset->read(i, sample);
    const std::string name = sample.name.substr(dir.path().size() + 1);
    EXPECT_EQ(testing::to_text(sample.bytes), name);
    EXPECT_EQ(sample.label, name[0] == 'B' ? 0 : 1);
    names.push_back(name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"B/one.jpg", "b/10.JPG", "b/2.jpg", "b/x.Jpeg",
                                             "b/sub/a.png", "b/sub-a/z.PNG", "b/sub/deep/q.jpeg"}))
      << "\"sub-a\" sorts between \"sub\" and \"sub/deep\", as os.walk's paths do";
}

TEST(FolderSource, MissingEmptyAndClasslessAreDataErrors) {
  const TempDir dir;
  const auto open = [&](const std::string& name) {
    return error_of([&] { open_dataset(env(), "folder:" + (dir / name)); });
  };
  write_file(dir / "flat/1.jpg", "x");
  write_file(dir / "gap/cat/1.jpg", "x");
  write_file(dir / "gap/dog/readme.txt", "x");
  for (const char* name : {"missing", "flat", "gap"}) {
    const Error error = open(name);
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.where().find(name), std::string::npos);
    EXPECT_FALSE(error.remedy().empty());
  }
  EXPECT_NE(open("gap").where().find("dog"), std::string::npos);
}

TEST(FolderSource, PartsOfASetAreNotTakenForClasses) {
  const TempDir dir;
  write_file(dir / "set/train/cat/1.jpg", "x");
  write_file(dir / "set/val/cat/1.jpg", "x");
  const Error error = error_of([&] { open_dataset(env(), "folder:" + (dir / "set")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.remedy().find("folder:" + (dir / "set/train")), std::string::npos);
  EXPECT_EQ(open_dataset(env(), "folder:" + (dir / "set/train"))->size(), 1u);
  // Classes may have these names, where their images lie in them or others stand beside them.
  write_file(dir / "set/val/2.jpg", "x");
  EXPECT_EQ(open_dataset(env(), "folder:" + (dir / "set"))->size(), 3u);
  write_file(dir / "toys/train/red/1.jpg", "x");
  write_file(dir / "toys/ship/red/1.jpg", "x");
  EXPECT_EQ(open_dataset(env(), "folder:" + (dir / "toys"))->size(), 2u);
}

TEST(FolderSource, LinkLoopIsAnError) {
  const TempDir dir;
  write_file(dir / "cat/1.jpg", "x");
  std::filesystem::create_directory_symlink(dir / "cat", dir / "cat/again");
  EXPECT_EQ(error_of([&] { open_dataset(env(), "folder:" + dir.path()); }).kind(),
            ErrorKind::kData);
}

TEST(FolderSource, ReadFailureNamesTheFile) {
  const TempDir dir;
  write_file(dir / "cat/1.jpg", "x");
  FaultEnv faults(env());
  const auto dataset = open_dataset(faults, "folder:" + dir.path());
  faults.inject({.match = {FileOp::kRead, ""}, .error = EIO});
  Sample sample;
  const Error error = error_of([&] { dataset->read(0, sample); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), dir / "cat/1.jpg");
  EXPECT_EQ(sample.name, dir / "cat/1.jpg");
}

TEST(SynthSource, IsDeterministicBalancedAndDecodes) {
  const std::string uri = "synth:size=24,count=60,classes=6,seed=5";
  const auto a = open_dataset(env(), uri), b = open_dataset(env(), uri + ",split=train");
  ASSERT_EQ(a->size(), 60u);
  ASSERT_EQ(a->classes().size(), 6u);
  EXPECT_TRUE(std::is_sorted(a->classes().begin(), a->classes().end()));
  std::vector<int> per_class(6);
  std::set<uint64_t> distinct;
  Sample x, y;
  Decoder decoder;
  Image image;
  for (size_t i = 0; i < a->size(); ++i) {
    a->read(i, x);
    b->read(a->size() - 1 - i, y);
    b->read(i, y);
    EXPECT_EQ(x.bytes, y.bytes);
    ++per_class[size_t(x.label)];
    distinct.insert(testing::hash_bytes(x.bytes));
    decoder.decode(x.bytes, x.name, image);
    EXPECT_EQ(image.width, 24);
    EXPECT_EQ(image.height, 24);
  }
  EXPECT_EQ(per_class, std::vector<int>(6, 10));
  EXPECT_EQ(distinct.size(), 60u);
}

TEST(SynthSource, SeedSplitAndIndexNameTheImage) {
  std::set<uint64_t> distinct;
  Sample sample;
  for (const char* spec :
       {"", "seed=1", "split=test", "seed=1,split=test", "difficulty=1", "size=33", "quality=50"}) {
    open_dataset(env(), std::string("synth:") + spec)->read(3, sample);
    distinct.insert(testing::hash_bytes(sample.bytes));
  }
  EXPECT_EQ(distinct.size(), 7u);
  // The number of images does not change any of them.
  open_dataset(env(), "synth:count=4")->read(3, sample);
  EXPECT_TRUE(distinct.contains(testing::hash_bytes(sample.bytes)));
}

TEST(SynthSource, BadOptionsAreUsageErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"sise=3", "size"},           {"size=7", "8 to 1024"},     {"size=big", "8 to 1024"},
      {"size=32x", "8 to 1024"},    {"classes=11", "2 to 10"},   {"difficulty=1.5", "0 to 1"},
      {"difficulty=nan", "0 to 1"}, {"split=val", "train or"},   {"count", "KEY=VALUE"},
      {"count=0", "1 to"},          {"quality=101", "1 to 100"}, {"seed=-1", "0 on"}};
  for (const auto& [spec, hint] : cases) {
    const Error error = error_of([&] { open_dataset(env(), std::string("synth:") + spec); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << spec;
    EXPECT_NE(error.remedy().find(hint), std::string::npos) << spec << ": " << error.what();
  }
}

TEST(InspectDataset, CountsAndFindsBrokenSamples) {
  const TempDir dir;
  for (int i = 0; i < 5; ++i)
    write_file(dir / ("cat/" + std::to_string(i) + ".jpg"), testing::noise_jpeg(10 + i, 20, 1));
  const std::string whole = testing::noise_jpeg(64, 64, 9);
  write_file(dir / "dog/cut.jpg", whole.substr(0, whole.size() / 2));
  write_file(dir / "dog/text.jpg", "this is no picture");
  write_file(dir / "dog/void.png", "");
  const auto dataset = open_dataset(env(), "folder:" + dir.path());

  size_t last = 0;
  const DatasetReport headers =
      inspect_dataset(*dataset, InspectDepth::kHeaders, 3, [&](size_t done, size_t total) {
        EXPECT_GT(done, last);
        EXPECT_EQ(total, 8u);
        last = done;
      });
  EXPECT_EQ(last, 8u);
  EXPECT_EQ(headers.samples, 8u);
  EXPECT_EQ(headers.class_samples, (std::vector<size_t>{5, 3}));
  EXPECT_EQ(headers.jpeg, 6u);
  EXPECT_EQ(headers.png, 0u);
  EXPECT_EQ(headers.components[3], 6u);
  EXPECT_EQ(headers.width.min, 10);
  EXPECT_EQ(headers.width.median, 12);
  EXPECT_EQ(headers.width.max, 64);
  EXPECT_EQ(headers.height.median, 20);
  ASSERT_EQ(headers.broken.size(), 2u);
  EXPECT_EQ(headers.broken[0].index, 6u);
  EXPECT_EQ(headers.broken[0].name, dir / "dog/text.jpg");
  EXPECT_FALSE(headers.broken[0].reason.empty());

  const DatasetReport pixels = inspect_dataset(*dataset, InspectDepth::kPixels, 2);
  ASSERT_EQ(pixels.broken.size(), 3u);
  EXPECT_EQ(pixels.broken[0].name, dir / "dog/cut.jpg");
}

}  // namespace
}  // namespace saturate
