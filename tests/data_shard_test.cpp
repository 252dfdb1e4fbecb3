#include <gtest/gtest.h>

#include "data/export.h"
#include "data/inspect.h"
#include "data/path_list.h"
#include "data/shard_format.h"
#include "data/sources.h"
#include "tests/format_testing.h"
#include "tests/shard_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::Forged;
using testing::format_golden;
using testing::get;
using testing::put;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

PackReport pack(const Dataset& dataset, const std::string& out, int threads = 2) {
  PackOptions options;
  options.out = out;
  options.threads = threads;
  return pack_dataset(env(), dataset, options);
}

class ShardFile : public ::testing::Test {
 protected:
  ShardFile() {
    pack(testing::OracleDataset(), "shard:" + (dir / "good.shard"));
    good.text = read_text(dir / "good.shard");
  }
  Error open(const std::string& text) {
    write_file(dir / "bad.shard", text);
    const Error error = error_of([&] { open_dataset(env(), "shard:" + (dir / "bad.shard")); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.where().find("bad.shard"), std::string::npos);
    EXPECT_FALSE(error.remedy().empty());
    return error;
  }
  void expect_reason(const std::string& text, const std::string& part) {
    const Error error = open(text);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
  }
  // A shard with one sample of each class.
  std::string pack_classes(const std::string& name, const std::vector<std::string>& classes) {
    const std::string path = dir / name;
    pack(testing::MemoryDataset(std::vector<std::string>(classes.size(), "x"), classes),
         "shard:" + path);
    return path;
  }
  TempDir dir;
  Forged good;
};

// The oracle implements docs/shard_format.md, independently of the source.
TEST_F(ShardFile, EqualsTheOneWrittenByPython) {
  EXPECT_EQ(good.text, testing::gunzip(format_golden("python.shard.gz")));
}

TEST_F(ShardFile, BothVersionsWrittenByPythonAreRead) {
  for (const char* name : {"python.shard", "python-v1.shard"}) {
    const std::string path = dir / name;
    write_file(path, testing::gunzip(format_golden(std::string(name) + ".gz")));
    const auto dataset = open_dataset(env(), "shard:" + path);
    testing::expect_samples(*dataset, "python.shard", path + ":");
  }
}

TEST_F(ShardFile, HoldsThePackedSamples) {
  testing::write_folder_dataset(dir / "set", 150);
  const auto folder = open_dataset(env(), "folder:" + (dir / "set"));
  const PackReport report = pack(*folder, "shard:" + (dir / "new/set.shard"));
  EXPECT_EQ(report.samples, 150u);
  EXPECT_EQ(report.copied, 150u);
  EXPECT_EQ(report.raw, 0u);
  const auto shard = open_dataset(env(), "shard:" + (dir / "new/set.shard"));
  testing::expect_equal(*folder, *shard);
  Sample sample;
  shard->read(149, sample);
  EXPECT_EQ(sample.name, dir / "new/set.shard:odd/00149.jpg");
  // Packing a shard again returns the same bytes for any number of threads.
  for (int threads : {1, 5}) {
    const std::string again = dir / (std::to_string(threads) + ".shard");
    pack(*shard, "shard:" + again, threads);
    EXPECT_EQ(read_text(again), read_text(dir / "new/set.shard"));
  }
}

TEST_F(ShardFile, SeveralShareTheirClasses) {
  testing::write_folder_dataset(dir / "a", 6);
  testing::write_folder_dataset(dir / "b", 10);
  std::filesystem::rename(dir / "b/even", dir / "b/zebra");
  const auto a = open_dataset(env(), "folder:" + (dir / "a"));
  const auto b = open_dataset(env(), "folder:" + (dir / "b"));
  pack(*a, "shard:" + (dir / "parts/part-0.shard"));
  pack(*b, "shard:" + (dir / "parts/part-1.shard"));
  write_file(dir / "parts/part-2.shard.tmp-1", "an unfinished write");
  for (const std::string& uri :
       {"shard:" + (dir / "parts"), "shard:" + (dir / "parts/part-{0..1}.shard"),
        "shard:" + (dir / "parts/part-0.shard") + "," + (dir / "parts/part-1.shard")}) {
    const auto both = open_dataset(env(), uri);
    ASSERT_EQ(both->size(), 16u) << uri;
    EXPECT_EQ(both->classes(), (std::vector<std::string>{"even", "odd", "zebra"}));
    Sample x, y;
    for (size_t i = 0; i < 16; ++i) {
      const Dataset& part = i < 6 ? *a : *b;
      part.read(i < 6 ? i : i - 6, x);
      both->read(i, y);
      EXPECT_EQ(x.bytes, y.bytes);
      EXPECT_EQ(part.classes()[size_t(x.label)], both->classes()[size_t(y.label)]);
    }
  }
  EXPECT_EQ(error_of([&] { open_dataset(env(), "shard:" + (dir / "a")); }).kind(),
            ErrorKind::kData);
}

// The zeros before a number depend on the largest of its shard.
TEST_F(ShardFile, SeveralShareNumberedClassesByValue) {
  const std::string small = pack_classes("small.shard", number_classes(3)),
                    large = pack_classes("large.shard", number_classes(12));
  for (const bool is_swapped : {false, true}) {
    const size_t first = is_swapped ? 12 : 3;  // samples of the first shard
    const auto both =
        open_dataset(env(), "shard:" + (is_swapped ? large + "," + small : small + "," + large));
    EXPECT_EQ(both->classes(), number_classes(12));
    ASSERT_EQ(both->size(), 15u);
    Sample sample;
    for (size_t i = 0; i < 15; ++i) {
      both->read(i, sample);
      EXPECT_EQ(sample.label, int64_t(i < first ? i : i - first)) << i;
    }
  }
}

TEST_F(ShardFile, NumbersThatAreNamesInAnotherShardMustHaveTheSameZeros) {
  const std::string small = pack_classes("small.shard", number_classes(3)),
                    large = pack_classes("large.shard", number_classes(12)),
                    names = pack_classes("names.shard", {"2", "cat"});
  const auto same = open_dataset(env(), "shard:" + small + "," + names);
  EXPECT_EQ(same->classes(), (std::vector<std::string>{"0", "1", "2", "cat"}));
  Sample sample;
  same->read(3, sample);
  EXPECT_EQ(sample.label, 2);
  for (const std::string& list : {large + "," + names, small + "," + large + "," + names}) {
    const Error error = error_of([&] { open_dataset(env(), "shard:" + list); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.reason().find("differ only in zeros"), std::string::npos) << error.what();
  }
  // Folders may have any names.
  const std::string folders = pack_classes("folders.shard", {"07", "7", "dog"});
  EXPECT_EQ(open_dataset(env(), "shard:" + folders + "," + names)->classes(),
            (std::vector<std::string>{"07", "2", "7", "cat", "dog"}));
}

TEST_F(ShardFile, TruncationAnywhereIsAnError) {
  for (size_t size = 0; size < good.text.size(); size += size < 200 ? 1 : 97)
    open(good.text.substr(0, size));
  expect_reason(good.text.substr(0, good.text.size() - 1), "truncated");
  expect_reason(good.text.substr(0, 5000), "truncated");
  open(good.text + "x");
  open(good.text + good.text);
}

// Every meaningful byte is covered by a check.
TEST_F(ShardFile, EveryFlippedByteIsDetected) {
  const testing::OracleDataset expected;
  for (size_t at = 0; at < good.text.size(); ++at) {
    if (good.text[at] == '\0' && at % 16 != 0) continue;  // a part of the padding suffices
    std::string bad = good.text;
    bad[at] = char(bad[at] ^ 0x20);
    write_file(dir / "bad.shard", bad);
    bool noticed = false;
    try {
      const auto dataset = open_dataset(env(), "shard:" + (dir / "bad.shard"));
      Sample x, y;
      for (size_t i = 0; i < dataset->size(); ++i) {
        dataset->read(i, x);
        expected.read(i, y);
        ASSERT_EQ(x.bytes, y.bytes) << "byte " << at;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      noticed = true;
    }
    const bool padding = good.text[at] == '\0' && at >= 64 && at < good.index();
    EXPECT_TRUE(noticed || padding) << "byte " << at;
  }
}

TEST_F(ShardFile, ForeignAndNewerFilesHaveARemedy) {
  expect_reason(std::string(10'000, 'x'), "not a shard");
  expect_reason("", "not a shard");
  Forged newer = good;
  put(newer.text, 8, uint32_t{4});
  newer.fix_block_checksums();
  const Error error = open(newer.text);
  EXPECT_NE(error.reason().find("version 4"), std::string::npos);
  EXPECT_NE(error.remedy().find("newer"), std::string::npos);
}

TEST_F(ShardFile, HostileTrailersAreRefused) {
  const auto forge = [&](size_t at, auto value) {
    Forged bad = good;
    put(bad.text, bad.trailer() + at, value);
    bad.fix_block_checksums();
    return bad.text;
  };
  const uint64_t huge = UINT64_MAX;
  expect_reason(forge(8, huge), "were written");
  for (uint64_t offset :
       {uint64_t{0}, uint64_t{4095}, uint64_t(good.trailer() + 1), huge, huge - 63})
    expect_reason(forge(16, offset), "index outside the file");
  for (uint64_t size : {uint64_t{0}, huge, huge - good.index() + 1})
    expect_reason(forge(24, size), "index outside the file");
  // Counts whose product with 40 overflows to a small number.
  for (uint64_t samples : {uint64_t{1000}, huge, huge / 40 + 1, uint64_t{1} << 61})
    expect_reason(forge(32, samples), "index too small");
  expect_reason(forge(32, uint64_t{0}), "no sample");
  for (uint32_t classes : {1000u, UINT32_MAX}) expect_reason(forge(40, classes), "class names");
  expect_reason(forge(40, 2u), "of class 2 of 2");
}

TEST_F(ShardFile, HostileRecordsAreRefused) {
  const auto forge = [&](size_t record, size_t at, auto value) {
    Forged bad = good;
    put(bad.text, bad.record(record) + at, value);
    bad.fix_checksums();
    return bad.text;
  };
  const uint64_t huge = UINT64_MAX;
  for (uint64_t offset : {uint64_t{0}, uint64_t{64}, uint64_t(good.index() + 64), huge, huge - 10})
    expect_reason(forge(3, 0, offset), "sample 3 outside the data or over");
  expect_reason(forge(4, 0, get<uint64_t>(good.text, good.record(3))), "sample 4 outside");
  expect_reason(forge(8, 8, UINT32_MAX), "sample 8 outside");
  expect_reason(forge(3, 8, uint32_t{5000}), "outside");
  expect_reason(forge(1, 16, uint32_t{3}), "of class 3 of 3");
  expect_reason(forge(1, 20, uint16_t{0}), "of kind 0");
  expect_reason(forge(1, 20, uint16_t{4}), "of kind 4");
  expect_reason(forge(1, 20, uint16_t{3}), "a JPEG of 0 x 0 pixels");
  Forged old = good;
  put(old.text, 8, uint32_t{1});
  put(old.text, old.record(2) + 20, uint16_t{3});
  old.fix_checksums();
  expect_reason(old.text, "of kind 3");                    // version 1 does not have it
  expect_reason(forge(1, 20, uint16_t{2}), "pixels");      // an encoded sample marked as raw
  expect_reason(forge(2, 22, uint16_t{4}), "4 channels");  // 60 bytes, 3 x 5 x 4
  expect_reason(forge(2, 24, uint32_t{60'000}), "60000 x 4");
  expect_reason(forge(2, 24, UINT32_MAX), "pixels");
  expect_reason(forge(2, 28, uint32_t{0}), "pixels");
  expect_reason(forge(5, 32, huge), "name of sample 5");
  expect_reason(forge(5, 32, uint64_t{1}), "name of sample 5");
}

TEST_F(ShardFile, ADamagedSampleIsNamedAndTheOthersAreRead) {
  Forged bad = good;
  bad.text[get<uint64_t>(bad.text, bad.record(6)) + 17] ^= 1;
  write_file(dir / "bad.shard", bad.text);
  const auto dataset = open_dataset(env(), "shard:" + (dir / "bad.shard"));
  Sample sample;
  for (size_t i = 0; i < 9; ++i) {
    if (i != 6) dataset->read(i, sample);
  }
  const Error error = error_of([&] { dataset->read(6, sample); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("checksum"), std::string::npos);
  EXPECT_NE(error.where().find("b\u00e4r/6.jpg"), std::string::npos);
}

TEST(PathList, PathsThatNoSourceOpensAreNamed) {
  const auto reason = [](const std::string& list) {
    return error_of([&] { expand_paths(env(), list, "tar"); }).reason();
  };
  EXPECT_EQ(reason("a.tar,tar:b.tar"), "tar: is written before the first path only");
  EXPECT_EQ(reason("a.tar, b.tar"), "the space before the path would be part of it");
  for (const char* path : {"*.tar", "a.tar,b*.tar"})
    EXPECT_EQ(reason(path), "wildcards are not expanded in a source");
  EXPECT_EQ(expand_paths(env(), "s3://bucket/*.tar", "tar").size(), 1u) << "a key may have one";
}

TEST(PathList, RangesExpandLikeBraceexpand) {
  std::ifstream file(format_golden("braces.tsv"));
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const size_t tab = line.find('\t');
    std::string joined;
    for (const std::string& path : expand_paths(env(), line.substr(0, tab), "tar"))
      joined += (joined.empty() ? "" : ",") + path;
    EXPECT_EQ(joined, line.substr(tab + 1));
  }
  EXPECT_GT(cases, 4);
}

TEST(PathList, ManyPathsAreOpenedByManyThreads) {
  const auto threads = [](size_t count, const std::string& path) {
    return opening_threads(std::vector<std::string>(count, path));
  };
  EXPECT_EQ(threads(15, "a.tar"), 1);
  EXPECT_EQ(threads(16, "a.tar"), 2);
  EXPECT_EQ(threads(100'000, "a.tar"), 32);
  EXPECT_EQ(threads(1, "s3://bucket/a.tar"), 128);
}

TEST(PathList, OddPathsAndRanges) {
  const TempDir dir;
  write_file(dir / "a,b{1..2}.tar", "x");
  EXPECT_EQ(expand_paths(env(), dir / "a,b{1..2}.tar", "tar").size(), 1u);
  EXPECT_EQ(expand_paths(env(), "a{b}c{,}", "tar").size(), 2u);  // not a range: taken literally
  for (const char* bad : {"{3..1}", "{0..999999999}", "{1..90000}{1..90000}", "a,,b", "a,", ""})
    EXPECT_EQ(error_of([&] { expand_paths(env(), bad, "tar"); }).kind(), ErrorKind::kUsage) << bad;
}

}  // namespace
}  // namespace saturate
