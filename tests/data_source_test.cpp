#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <set>

#include "data/export.h"
#include "data/inspect.h"
#include "data/progress_meter.h"
#include "data/sources.h"
#include "saturate/data/input.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::TempDir;
using testing::write_file;
using testing::write_folder_dataset;

TEST(OpenDataset, UnknownSchemeNamesTheNearestOne) {
  const Error error = error_of([] { open_dataset(env(), "foldr:/x"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "data.source");
  EXPECT_NE(error.remedy().find("\"folder\""), std::string::npos);
  EXPECT_EQ(error_of([] { open_dataset(env(), "folder:"); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { open_dataset(env(), "tar:a.tar,"); }).kind(), ErrorKind::kUsage);
}

// It need not be data.source.
TEST(OpenDataset, AWrongOptionNamesTheSource) {
  const auto where = [](const char* uri) {
    return error_of([&] { open_dataset(env(), uri); }).where();
  };
  EXPECT_EQ(where("folder:"), "folder:");
  EXPECT_EQ(where("tar:a.tar,"), "tar:a.tar,");
  EXPECT_EQ(where("tar:a.tar,labels=x"), "a.tar");
  EXPECT_EQ(where("idx:a,split=x"), "a,split=x");
  EXPECT_EQ(where("idx:a,b,c"), "idx:a,b,c");
  EXPECT_EQ(where("masks:a,classes=1"), "a,classes=1");
  EXPECT_EQ(where("tokens:a,type=int8"), "tokens:a,type=int8");
  EXPECT_EQ(where("split:train,5,synth:"), "split:train,5,synth:");
  EXPECT_EQ(where("synth:size=0"), "synth:size=0");
}

TEST(OpenDataset, TheSchemeSaysWhetherSamplesAreFilesOfTheirOwn) {
  for (const char* uri : {"folder:a", "masks:a,b", "s3://bucket/set/", "folder:s3://bucket/set",
                          "split:train,1/5,folder:a", "split:test,1/5,split:train,1/5,s3://b/set/"})
    EXPECT_TRUE(has_file_per_sample(env(), uri)) << uri;
  for (const char* uri : {"tar:a.tar", "shard:https://host/folder:a.shard", "s3://bucket/a.tar",
                          "split:train,1/5,shard:a", "split:train", "tokens:a"})
    EXPECT_FALSE(has_file_per_sample(env(), uri)) << uri;
}

// The order of torchvision's ImageFolder: classes sorted, then (folder, file) sorted.
TEST(FolderSource, ListsLikeImageFolder) {
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
      << "\"sub-a\" sorts between \"sub\" and \"sub/deep\", like os.walk's paths";
}

// A class with images that exist by name only.
class ManyImages : public FaultEnv {
 public:
  static constexpr size_t kCount = 100'000;
  ManyImages() : FaultEnv(env()) {}
  bool is_directory(const std::string&) override { return true; }
  std::vector<FileInfo> list(const std::string& path) override {
    if (!path.ends_with("/n01440764")) return {FileInfo{"n01440764", true}};
    std::vector<FileInfo> found;
    for (size_t i = 0; i < kCount; ++i)
      found.push_back({"n01440764_" + std::to_string(10'000 + i) + ".JPEG", false});
    return found;
  }
};

TEST(FolderSource, HoldsLittleMoreThanTheNamesOfItsImages) {
  ManyImages images;
  const auto in_use = [] {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = in_use();
  if (before == 0) GTEST_SKIP() << "a sanitizer's allocator does not count";
  const auto dataset = open_dataset(images, "folder:/many");
  ASSERT_EQ(dataset->size(), ManyImages::kCount);
  EXPECT_LT(in_use() - before, 45 * ManyImages::kCount);
}

TEST(FolderSource, ImagesOutsideClassFoldersAreReported) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 10);
  const std::string uri = "folder:" + (dir / "set/");
  write_file(dir / "set/notes.txt", "no image");
  write_file(dir / "set/._a.jpg", "hidden");
  EXPECT_EQ(open_dataset(env(), uri)->warning(), "");
  write_file(dir / "set/b.JPG", "x");
  EXPECT_EQ(open_dataset(env(), uri)->warning(),
            "an image beside the class folders is not read: " + (dir / "set/b.JPG"));
  write_file(dir / "set/a.png", "x");
  const std::string two = "2 images beside the class folders are not read, such as ";
  EXPECT_EQ(open_dataset(env(), uri)->size(), 10u);
  DataOptions kept;
  kept.cache.mode = CacheMode::kRam;
  kept.stage.mode = StageMode::kTmpfs;
  kept.stage.folder = dir.path();
  for (const std::string& source : {uri, "split:train,1/5," + uri, "split:held,1/5," + uri})
    EXPECT_EQ(open_input(env(), source, kept)->warning(), two + (dir / "set/a.png")) << source;
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

TEST(FolderSource, SplitFoldersAreNotClasses) {
  const TempDir dir;
  write_file(dir / "set/train/cat/1.jpg", "x");
  write_file(dir / "set/val/cat/1.jpg", "x");
  const Error error = error_of([&] { open_dataset(env(), "folder:" + (dir / "set")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.remedy().find("folder:" + (dir / "set/train")), std::string::npos);
  EXPECT_EQ(open_dataset(env(), "folder:" + (dir / "set/train"))->size(), 1u);
  // These can be class names if they contain images directly, or other folders are beside them.
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
  // The number of images does not change any single one.
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

// In a large source a few samples are examined, by the first bytes of their files; classes are
// counted over all samples.
TEST(InspectDataset, ExaminesTheRequestedNumberOfSamples) {
  const TempDir dir;
  for (int i = 0; i < 300; ++i)
    write_file(dir / ((i < 100 ? "cat/" : "dog/") + std::to_string(1000 + i) + ".jpg"),
               testing::noise_jpeg(16, 16, 1) + std::string(100'000, 'x'));
  FaultEnv counting(env());
  const auto dataset = open_dataset(counting, "folder:" + dir.path());
  size_t last = 0;
  const DatasetReport report = inspect_dataset(
      *dataset, InspectDepth::kHeaders, 2, [&](size_t done, size_t) { last = done; }, 30);
  EXPECT_EQ(last, 30u);
  EXPECT_EQ(report.samples, 300u);
  EXPECT_EQ(report.looked_at, 30u);
  EXPECT_EQ(report.jpeg, 30u);
  EXPECT_EQ(report.class_samples, (std::vector<size_t>{100, 200}));
  EXPECT_GT(report.bytes, 30u * 100'000);
  EXPECT_EQ(counting.count({FileOp::kOpen, ".jpg"}), 30u);
  EXPECT_EQ(counting.count({FileOp::kRead, ".jpg"}), 30u);
}

// As of a store that is away: no sample is broken.
TEST(InspectDataset, AnErrorThatIsNotOfASampleEndsIt) {
  class Away : public Dataset {
    size_t size() const override { return 3; }
    const std::vector<std::string>& classes() const override { return names_; }
    void read(size_t index, Sample&) const override {
      fail(index == 1 ? ErrorKind::kRun : ErrorKind::kData, "gone", "object", "Wait");
    }
    std::vector<std::string> names_{"a"};
  };
  const Error error = error_of([] { inspect_dataset(Away(), InspectDepth::kPixels, 2); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.where(), "object");
}

// Also if the header is beyond the first part of a file that is read.
TEST(InspectDataset, ReadsTheHeadersOfEveryKindOfSource) {
  const TempDir dir;
  const std::string small = testing::noise_jpeg(20, 10, 1);
  const std::string comment = "\xff\xfe\xff\xff" + std::string(0xfffd, 'c');
  const std::string large = small.substr(0, 2) + comment + small.substr(2);
  for (int i = 0; i < 6; ++i)
    write_file(dir / ("set/cat/" + std::to_string(i) + ".jpg"), i == 3 ? large : small);
  write_file(dir / "set/dog/0.jpg", small.substr(0, 40));
  const std::string set = "folder:" + (dir / "set");
  for (const char* out : {"shard:s.shard", "tar:t.tar", "lmdb:l"}) {
    PackOptions options;
    const std::string text = out;
    const size_t colon = text.find(':') + 1;
    options.out = text.substr(0, colon) + (dir / text.substr(colon));
    options.segment = 0;
    pack_dataset(env(), *open_dataset(env(), set), options);
    const auto report =
        inspect_dataset(*open_dataset(env(), options.out), InspectDepth::kHeaders, 2, {}, 5);
    EXPECT_EQ(report.samples, 7u) << out;
    EXPECT_EQ(report.looked_at, 5u) << out;
    EXPECT_EQ(report.class_samples, (std::vector<size_t>{6, 1})) << out;
  }
  const auto report = inspect_dataset(*open_dataset(env(), set), InspectDepth::kHeaders, 2);
  EXPECT_EQ(report.looked_at, 7u);
  EXPECT_EQ(report.jpeg, 6u);
  EXPECT_EQ(report.width.max, 20);
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_EQ(report.broken[0].index, 6u);
}

// A two-hundredth of ImageNet takes half a minute.
TEST(ProgressMeter, IsCalledOftenForAnyTotal) {
  size_t calls = 0;
  const ProgressCallback callback = [&](size_t, size_t) { ++calls; };
  ProgressMeter meter(callback, 1'000'000);
  for (int i = 0; i < 1000; ++i) meter.add_one();
  EXPECT_GE(calls, 10u);
}

TEST(InspectDataset, NamesProgressiveJpegs) {
  const auto picture = testing::test_picture(80, 60);
  const std::string baseline = testing::to_text(testing::encode_as(picture, {.name = "baseline"}));
  std::string progressive =
      testing::to_text(testing::encode_as(picture, {.name = "progressive", .progressive = true}));
  EXPECT_EQ(inspect_dataset(testing::MemoryDataset({baseline}), InspectDepth::kHeaders, 1).note,
            "");
  // Its frame may lie beyond what is read at first, as behind a preview.
  const std::string comment = std::string("\xff\xfe\xff\xff") + std::string(65533, ' ');
  for (int i = 0; i < 2; ++i, progressive.insert(2, comment)) {
    const TempDir dir;
    write_file(dir / "cat/a.jpg", progressive);
    write_file(dir / "cat/b.jpg", baseline);
    write_file(dir / "cat/c.png", testing::to_text(encode_png(picture.pixels.data(), picture.width,
                                                              picture.height, 3)));
    const auto set = open_dataset(env(), "folder:" + dir.path());
    const auto report = inspect_dataset(*set, InspectDepth::kHeaders, 1);
    EXPECT_EQ(report.note.substr(0, 29), "1 of 2 JPEGs are progressive:") << i;
    PackOptions options;
    options.out = "shard:" + (dir / "x.shard");
    pack_dataset(env(), *set, options);
    const auto packed = open_dataset(env(), options.out);
    EXPECT_EQ(inspect_dataset(*packed, InspectDepth::kHeaders, 1).note, "") << "baseline now";
  }
}

// The result for a sample does not depend on which sample the thread read before.
TEST(InspectDataset, TheResultDependsNeitherOnThreadsNorOnOrder) {
  const auto picture = testing::test_picture(80, 60);
  const auto own = testing::encode_as(picture, {.name = "own", .own_tables = true}, 30);
  const auto plain = testing::encode_as(picture, {.name = "plain"}, 85);
  std::vector<std::string> files;
  for (int i = 0; i < 8; ++i) {
    files.push_back(testing::to_text(own));
    files.push_back(testing::to_text(testing::without_segments(plain, 0xc4)));  // readable
    files.push_back(testing::to_text(testing::without_segments(plain, 0xdb)));  // broken
  }
  for (int order = 0; order < 4; ++order) {
    std::rotate(files.begin(), files.begin() + order % 3, files.end());
    if (order == 3) std::reverse(files.begin(), files.end());
    for (const int threads : {1, 2, 7})
      EXPECT_EQ(inspect_dataset(testing::MemoryDataset(files), InspectDepth::kPixels, threads)
                    .broken.size(),
                8u);
  }
}

}  // namespace
}  // namespace saturate
