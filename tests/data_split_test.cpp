// Sources named by only a path, and a part of a source.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/export.h"
#include "data/sources.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::TempDir;
using testing::write_file;
using testing::write_folder_dataset;

TEST(PlainPath, AFolderATarAndAShardNeedNoScheme) {
  const TempDir dir;
  write_folder_dataset(dir / "photos", 12);
  const auto folder = open_dataset(env(), "folder:" + (dir / "photos"));
  write_dataset(env(), *folder, dir / "photos.tar", 1, {});
  PackOptions pack;
  pack.out = "shard:" + (dir / "packed.data");
  pack_dataset(env(), *folder, pack, {});
  pack.out = "shard:" + (dir / "shards/0.shard");
  std::filesystem::create_directory(dir / "shards");
  pack_dataset(env(), *folder, pack, {});
  for (const char* name : {"photos", "photos/", "photos.tar", "packed.data", "shards"}) {
    const auto plain = open_dataset(env(), dir / name);
    EXPECT_EQ(plain->size(), 12u) << name;
    EXPECT_EQ(plain->classes(), folder->classes()) << name;
  }
  EXPECT_EQ(open_dataset(env(), (dir / "photos.tar") + "," + (dir / "photos.tar"))->size(), 24u);
  std::filesystem::rename(dir / "photos.tar", dir / "set-000.tar");
  EXPECT_EQ(open_dataset(env(), dir / "set-{000..000}.tar")->size(), 12u);
}

TEST(PlainPath, OtherKindsAreDetectedFromTheFiles) {
  const TempDir dir;
  write_file(dir / "mnist/train-images-idx3-ubyte", "x");
  write_file(dir / "cifar/data_batch_1.bin", "x");
  write_file(dir / "lmdb/data.mdb", "x");
  write_file(dir / "masked/images/a.png", "x");
  write_file(dir / "masked/masks/a.png", "x");
  write_file(dir / "unpacked.tar.gz", "x");
  write_file(dir / "notes.txt", "x");
  write_file(dir / "odd:name/cat/1.jpg", "x");
  const auto scheme = [&](const std::string& name) { return scheme_of_source(env(), dir / name); };
  EXPECT_EQ(scheme("mnist"), "idx");
  EXPECT_EQ(scheme("mnist,split=train"), "idx");
  EXPECT_EQ(scheme("cifar"), "cifar");
  EXPECT_EQ(scheme("lmdb"), "lmdb");
  EXPECT_EQ(scheme("masked"), "masks");
  EXPECT_EQ(scheme("unpacked.tar.gz"), "tar") << "its error has the remedy";
  EXPECT_EQ(scheme("odd:name"), "folder");
  EXPECT_EQ(scheme("notes.txt"), "");
  EXPECT_EQ(scheme("missing"), "");
  EXPECT_EQ(scheme_of_source(env(), "tar:nowhere"), "tar");
  EXPECT_EQ(scheme_of_source(env(), ""), "");
}

TEST(PlainPath, AMissingPathIsNamed) {
  const TempDir dir;
  write_file(dir / "notes.txt", "x");
  const Error missing = error_of([&] { open_dataset(env(), dir / "photos"); });
  EXPECT_EQ(missing.kind(), ErrorKind::kUsage);
  EXPECT_NE(missing.reason().find("no such file or folder"), std::string::npos);
  EXPECT_EQ(missing.where(), dir / "photos");
  const Error other = error_of([&] { open_dataset(env(), dir / "notes.txt"); });
  EXPECT_NE(other.reason().find("the file's format is not supported"), std::string::npos)
      << other.what();
  EXPECT_EQ(error_of([&] { open_dataset(env(), ""); }).kind(), ErrorKind::kUsage);
}

std::vector<std::string> names_in(const Dataset& data) {
  std::vector<std::string> names;
  Sample sample;
  for (size_t i = 0; i < data.size(); ++i) {
    data.read(i, sample);
    names.push_back(sample.name);
  }
  return names;
}

TEST(SplitSource, TheTwoPartsAreTheWholeAndEachClassIsSplit) {
  const TempDir dir;
  write_folder_dataset(dir / "photos", 46);
  const std::string source = "folder:" + (dir / "photos");
  const auto whole = names_in(*open_dataset(env(), source));
  for (const int every : {2, 3, 5, 10, 46}) {
    const std::string share = ",1/" + std::to_string(every) + ",";
    const auto train = open_dataset(env(), "split:train" + share + source);
    const auto held = open_dataset(env(), "split:held" + share + source);
    EXPECT_NEAR(double(held->size()), 46.0 / every, 1) << every;
    auto both = names_in(*train);
    const auto others = names_in(*held);
    both.insert(both.end(), others.begin(), others.end());
    std::ranges::sort(both);
    EXPECT_EQ(both, whole) << every;
    EXPECT_EQ(held->classes(), train->classes());
    for (const auto& part : {&train, &held})
      for (size_t i = 0; i < (*part)->size(); ++i) EXPECT_GT((*part)->bytes(i), 0u);
    train->advise(ReadAdvice::kSoon, 0, train->size());
    held->advise(ReadAdvice::kSoon, 0, held->size());
  }
  int64_t odd = 0;
  Sample sample;
  const auto held = open_dataset(env(), "split:held,1/5," + source);
  for (size_t i = 0; i < held->size(); ++i) {
    held->read(i, sample);
    odd += sample.label;
  }
  EXPECT_NEAR(double(odd), double(held->size()) / 2, 1);
}

// Its labels and the starts of its files, without reading the rest.
TEST(SplitSource, OfAnIndexedSourceIsIndexed) {
  const TempDir dir;
  write_folder_dataset(dir / "photos", 23);
  for (const char* part : {"train", "held"}) {
    const auto split =
        open_dataset(env(), std::string("split:") + part + ",1/4,folder:" + (dir / "photos"));
    const auto* const indexed = dynamic_cast<const IndexedSource*>(split.get());
    ASSERT_TRUE(indexed);
    Sample whole, start;
    for (size_t i = 0; i < split->size(); ++i) {
      split->read(i, whole);
      EXPECT_EQ(indexed->label(i), whole.label);
      EXPECT_EQ(indexed->read_start(i, 20, start), whole.bytes.size());
      EXPECT_EQ(start.name, whole.name);
      EXPECT_EQ(start.bytes.size(), 20u);
    }
  }
}

TEST(SplitSource, AnInvalidShareIsRefused) {
  const TempDir dir;
  write_folder_dataset(dir / "photos", 4);
  for (const char* rest : {"", "train", "train,1/5", "half,1/5,x", "held,2/5,x", "held,1/1,x",
                           "held,1/0,x", "held,1/5x,x", "held,1/5,", "held,1/-2,x"})
    EXPECT_EQ(error_of([&] { open_dataset(env(), std::string("split:") + rest); }).kind(),
              ErrorKind::kUsage)
        << rest;
  const Error few = error_of([&] { open_dataset(env(), "split:held,1/20," + (dir / "photos")); });
  EXPECT_EQ(few.kind(), ErrorKind::kData);
  EXPECT_EQ(open_dataset(env(), "split:train,1/20," + (dir / "photos"))->size(), 4u);
}

}  // namespace
}  // namespace saturate
