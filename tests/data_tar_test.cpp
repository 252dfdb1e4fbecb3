#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "data/export.h"
#include "data/tar_format.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

std::string tar_golden(const std::string& name) {
  return testing::source_path("tests/goldens/tar/" + name);
}

struct Expected {
  uint64_t offset, size, hash;
  std::string name;
};

// Archives and the output of Python's tarfile: tests/oracles/tar_goldens.py.
std::vector<Expected> read_manifest(const std::string& path) {
  std::vector<Expected> expected;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Expected e;
    std::istringstream(line) >> e.offset >> e.size >> std::hex >> e.hash;
    e.name = line.substr(line.rfind('\t') + 1);
    expected.push_back(e);
  }
  return expected;
}

class TarGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TarGolden, ReadsTheSameAsTarfile) {
  const std::string path = tar_golden(std::string(GetParam()) + ".tar");
  const auto expected = read_manifest(tar_golden(std::string(GetParam()) + ".tsv"));
  ASSERT_FALSE(expected.empty());
  const auto dataset = open_dataset(env(), "tar:" + path);
  ASSERT_EQ(dataset->size(), expected.size());
  Sample sample;
  for (size_t i = 0; i < expected.size(); ++i) {
    dataset->read(i, sample);
    EXPECT_EQ(sample.name, path + ":" + expected[i].name);
    EXPECT_EQ(sample.bytes.size(), expected[i].size);
    EXPECT_EQ(testing::hash_bytes(sample.bytes), expected[i].hash) << sample.name;
    const std::string parent = std::filesystem::path(expected[i].name).parent_path().filename();
    EXPECT_EQ(dataset->classes()[size_t(sample.label)], parent);
  }
  EXPECT_TRUE(std::is_sorted(dataset->classes().begin(), dataset->classes().end()));
}

TEST_P(TarGolden, OffsetsEqualTarfiles) {
  const auto expected = read_manifest(tar_golden(std::string(GetParam()) + ".tsv"));
  TarScanner scanner(env(), tar_golden(std::string(GetParam()) + ".tar"));
  TarMember member;
  size_t i = 0;
  while (scanner.next(member)) {
    if (member.name.ends_with(".txt")) continue;
    ASSERT_LT(i, expected.size());
    EXPECT_EQ(member.offset, expected[i++].offset);
  }
  EXPECT_EQ(i, expected.size());
}

// The end marker is required, so an archive truncated anywhere before it is refused, also between
// two members.
TEST_P(TarGolden, TruncationBeforeTheEndMarkerIsAnError) {
  const TempDir dir;
  const std::string whole = read_text(tar_golden(std::string(GetParam()) + ".tar"));
  const size_t samples = read_manifest(tar_golden(std::string(GetParam()) + ".tsv")).size();
  size_t end = whole.size();  // of the last block that is not zero
  while (whole[end - 1] == '\0') --end;
  end = (end + 511) / 512 * 512;
  // A payload of zeros at the end would look like the marker; these archives have none.
  for (size_t cut = 0; cut <= whole.size(); cut += 512) {
    for (size_t extra : {size_t{0}, size_t{300}}) {
      if (cut + extra > whole.size()) continue;
      write_file(dir / "cut.tar", whole.substr(0, cut + extra));
      if (cut >= end + 512) {
        EXPECT_EQ(open_dataset(env(), "tar:" + (dir / "cut.tar"))->size(), samples);
        continue;
      }
      const Error error = error_of([&] { open_dataset(env(), "tar:" + (dir / "cut.tar")); });
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(error.where().find("cut.tar"), std::string::npos);
    }
  }
}

// Whatever a damaged header contains, the result is an error or a dataset, never a crash or a hang.
TEST_P(TarGolden, DamagedHeadersAreRefused) {
  const TempDir dir;
  const std::string whole = read_text(tar_golden(std::string(GetParam()) + ".tar"));
  RandomStream random(3, 0, 0, RandomUse::kSynthetic);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 3; ++i)
      damaged[size_t(random.below(damaged.size()))] = char(random.next_u32());
    write_file(dir / "bad.tar", damaged);
    try {
      const auto dataset = open_dataset(env(), "tar:" + (dir / "bad.tar"));
      Sample sample;
      for (size_t i = 0; i < dataset->size(); ++i) dataset->read(i, sample);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, TarGolden, ::testing::Values("ustar", "gnu", "pax", "base256"),
                         [](const auto& param) { return std::string(param.param); });

// As above, with a corrected checksum, so that the fields themselves are parsed.
TEST(TarScanner, HostileFieldsAreErrorsOrData) {
  const auto open = [](const std::string& block) {
    return parse_tar_header(std::as_bytes(std::span<const char, 512>(block.data(), 512)), "x", 0);
  };
  const auto plain_bytes = make_tar_header("cat/a.jpg", 5);
  const std::string plain = testing::to_text(plain_bytes);
  EXPECT_EQ(open(plain).name, "cat/a.jpg");
  EXPECT_EQ(open(plain).size, 5u);
  const auto with_size = [&](const std::string& field) {
    std::string block = plain;
    std::copy(field.begin(), field.end(), block.begin() + 124);
    std::fill_n(block.begin() + 148, 8, ' ');
    unsigned sum = 0;
    for (char c : block) sum += static_cast<unsigned char>(c);
    char text[8];
    snprintf(text, sizeof text, "%06o", sum);
    std::copy_n(text, 7, block.begin() + 148);
    return block;
  };
  EXPECT_EQ(open(with_size("          17")).size, 15u);
  EXPECT_EQ(open(with_size(std::string("\x80\0\0\0\0\0\0\0\0\0\1\2", 12))).size, 258u);
  EXPECT_EQ(open(with_size(std::string(12, '\0'))).size, 0u);
  for (const std::string& bad :
       {std::string(12, '\xff'), "\x80" + std::string(11, '\xff'), std::string("0000000009 "),
        std::string("-0000000001 "), std::string("12x"),
        std::string("\x80\x00\x00\x00\x7f", 5) + std::string(7, '\xff')})
    EXPECT_EQ(error_of([&] { open(with_size(bad)); }).kind(), ErrorKind::kData) << bad;
  std::string wrong = plain;
  wrong[0] = 'd';
  EXPECT_NE(error_of([&] { open(wrong); }).reason().find("checksum"), std::string::npos);
}

TEST(TarScanner, BadPaxRecordsAreErrors) {
  EXPECT_EQ(*parse_pax("12 path=a/b\n9 size=3\n", "x", 0).path, "a/b");
  EXPECT_EQ(*parse_pax("12 path=a/b\n9 size=3\n", "x", 0).size, 3u);
  EXPECT_TRUE(parse_pax("22 GNU.sparse.major=1\n", "x", 0).sparse);
  EXPECT_EQ(*parse_pax("12 path=a=b\n", "x", 0).path, "a=b");
  for (const char* bad :
       {"path=a\n", "99 path=a\n", "3 a\n", "0 path=a\n", "9 size=x\n", "8 path=a\n",
        "18446744073709551615 path=a\n", "6 abc\n", "13 path=a/b\n"})
    EXPECT_EQ(error_of([&] { parse_pax(bad, "x", 0); }).kind(), ErrorKind::kData) << bad;
}

TEST(TarSource, ACompressedArchiveIsAnErrorWithARemedy) {
  const TempDir dir;
  write_file(dir / "z.tar.zst", "\x28\xb5\x2f\xfd" + std::string(600, 'x'));
  for (const auto& [name, command] :
       std::vector<std::pair<std::string, std::string>>{{tar_golden("packed.tar.gz"), "gunzip"},
                                                        {tar_golden("packed.tar.bz2"), "bunzip2"},
                                                        {tar_golden("packed.tar.xz"), "unxz"},
                                                        {dir / "z.tar.zst", "unzstd"}}) {
    const Error error = error_of([&] { open_dataset(env(), "tar:" + name); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.remedy().find(command + " " + name), std::string::npos) << error.what();
  }
}

TEST(TarSource, LinkedImageIsAnError) {
  const Error error = error_of([] { open_dataset(env(), "tar:" + tar_golden("links.tar")); });
  EXPECT_NE(error.where().find("cat/b.jpg"), std::string::npos);
  EXPECT_NE(error.remedy().find("--hard-dereference"), std::string::npos);
}

TEST(TarSource, AnImageOutsideAClassFolderIsAnError) {
  const TempDir dir;
  const auto write = [&](const std::string& member) {
    write_file(dir / "t.tar",
               testing::to_text(make_tar_header(member, 0)) + std::string(1024, '\0'));
    return error_of([&] { open_dataset(env(), "tar:" + (dir / "t.tar")); });
  };
  EXPECT_NE(write("a.jpg").reason().find("class folder"), std::string::npos);
  EXPECT_NE(write("./../a.jpg").reason().find("class folder"), std::string::npos);
  EXPECT_NE(write("cat/a.txt").reason().find("holds no"), std::string::npos);
  EXPECT_EQ(error_of([&] { open_dataset(env(), "tar:" + (dir / "none.tar")); }).kind(),
            ErrorKind::kData);
}

TEST(TarSource, SeveralArchivesShareTheirClasses) {
  const auto one = open_dataset(env(), "tar:" + tar_golden("ustar.tar"));
  const auto two =
      open_dataset(env(), "tar:" + tar_golden("pax.tar") + "," + tar_golden("ustar.tar"));
  const auto pax = open_dataset(env(), "tar:" + tar_golden("pax.tar"));
  EXPECT_EQ(two->classes(), pax->classes());  // a superset of the other's
  ASSERT_EQ(two->size(), one->size() + pax->size());
  Sample a, b;
  for (size_t i = 0; i < one->size(); ++i) {
    one->read(i, a);
    two->read(pax->size() + i, b);
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(one->classes()[size_t(a.label)], two->classes()[size_t(b.label)]);
  }
}

// Small members are read in large pieces, large ones are skipped.
TEST(TarSource, OpensWithFewReads) {
  const TempDir dir;
  std::string text;
  const std::string payload(100'000, 'p');
  for (int i = 0; i < 50; ++i) {
    text += testing::to_text(make_tar_header("c/" + std::to_string(i) + ".jpg", payload.size()));
    text += payload;
    text.resize(size_t(tar_padded(text.size())));
  }
  write_file(dir / "large.tar", text + std::string(1024, '\0'));
  FaultEnv counting(env());
  EXPECT_EQ(open_dataset(counting, "tar:" + (dir / "large.tar"))->size(), 50u);
  EXPECT_LE(counting.count({FileOp::kRead, "large.tar"}), 52u);
  open_dataset(counting, "tar:" + tar_golden("gnu.tar"));
  EXPECT_EQ(counting.count({FileOp::kRead, "gnu.tar"}),
            4u);  // the magic number, then windows of 4, 16 and 64 KB
}

TEST(TarSource, OpensCifar) {
  const std::string path = testing::shared_path("data/cifar10-train.tar");
  if (!env().exists(path)) GTEST_SKIP() << path << " is absent";
  FaultEnv counting(env());
  const auto dataset = open_dataset(counting, "tar:" + path);
  EXPECT_EQ(dataset->size(), 50'000u);
  EXPECT_EQ(dataset->classes(),
            (std::vector<std::string>{"airplane", "automobile", "bird", "cat", "deer", "dog",
                                      "frog", "horse", "ship", "truck"}));
  EXPECT_LT(counting.count({FileOp::kRead, {}}), 200u);
  Decoder decoder;
  Image image;
  Sample sample;
  for (size_t i = 0; i < dataset->size(); i += 997) {
    dataset->read(i, sample);
    decoder.decode(sample.bytes, sample.name, image);
    EXPECT_EQ(image.width, 32);
    EXPECT_NE(sample.name.find("/" + dataset->classes()[size_t(sample.label)] + "/"),
              std::string::npos);
  }
}

// The exported samples, by `describe(folder or archive)`: class, file name and bytes.
std::multiset<std::string> contents(const Dataset& dataset) {
  std::multiset<std::string> all;
  Sample sample;
  for (size_t i = 0; i < dataset.size(); ++i) {
    dataset.read(i, sample);
    all.insert(dataset.classes()[size_t(sample.label)] + "/" +
               sample.name.substr(sample.name.rfind('/') + 1) + ":" +
               testing::to_text(sample.bytes));
  }
  return all;
}

TEST(WriteDataset, FolderTarAndUnpackedTarHoldTheSameSamples) {
  const TempDir dir;
  const auto synth = open_dataset(env(), "synth:count=600,size=8,classes=3");
  size_t done = 0;
  write_dataset(env(), *synth, dir / "new/folder", 2, [&](size_t d, size_t) { done = d; });
  EXPECT_EQ(done, 600u);
  write_dataset(env(), *synth, dir / "new/packed.tar", 2);
  write_dataset(env(), *synth, dir / "again.tar", 1);
  EXPECT_EQ(read_text(dir / "new/packed.tar"), read_text(dir / "again.tar"));

  const auto folder = open_dataset(env(), "folder:" + (dir / "new/folder"));
  const auto tar = open_dataset(env(), "tar:" + (dir / "new/packed.tar"));
  EXPECT_EQ(folder->classes(), synth->classes());
  EXPECT_EQ(tar->classes(), synth->classes());
  ASSERT_EQ(folder->size(), 600u);
  EXPECT_EQ(contents(*folder), contents(*tar));
  Sample a, b;
  for (size_t i = 0; i < synth->size(); ++i) {  // an archive keeps the order
    synth->read(i, a);
    tar->read(i, b);
    ASSERT_EQ(a.bytes, b.bytes);
    ASSERT_EQ(a.label, b.label);
  }
  if (std::system("tar --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no tar command";
  env().make_directories(dir / "unpacked");
  ASSERT_EQ(std::system(("tar -xf " + (dir / "again.tar") + " -C " + (dir / "unpacked")).c_str()),
            0);
  EXPECT_EQ(contents(*open_dataset(env(), "folder:" + (dir / "unpacked"))), contents(*tar));
}

TEST(WriteDataset, ExistingOutputIsRefusedAndAFailureLeavesNoPartialArchive) {
  const TempDir dir;
  const auto synth = open_dataset(env(), "synth:count=4,size=8,classes=2");
  write_file(dir / "taken/file", "x");
  write_file(dir / "taken.tar", "x");
  for (const char* out : {"taken", "taken.tar"})
    EXPECT_EQ(error_of([&] { write_dataset(env(), *synth, dir / out, 1); }).kind(),
              ErrorKind::kUsage);
  FaultEnv faults(env());
  faults.inject({.match = {FileOp::kWrite, ""}, .error = ENOSPC, .written = 700});
  EXPECT_EQ(error_of([&] { write_dataset(faults, *synth, dir / "full.tar", 1); }).kind(),
            ErrorKind::kRun);
  EXPECT_FALSE(env().exists(dir / "full.tar"));
  EXPECT_EQ(env().list(dir.path()).size(), 2u);
}

// The third file meets a full disk; a folder that existed before remains, empty.
TEST(WriteDataset, AFailureLeavesNoPartialFolder) {
  for (const char* spec : {"synth:count=4,size=8,classes=2", "synth:count=4,size=16,masks=true"}) {
    const TempDir dir;
    const auto synth = open_dataset(env(), spec);
    env().make_directories(dir / "there");
    for (const char* out : {"new", "new/", "there"}) {
      FaultEnv faults(env());
      faults.inject({.match = {FileOp::kWrite, ""}, .skip = 2, .error = ENOSPC, .written = 7});
      EXPECT_EQ(error_of([&] { write_dataset(faults, *synth, dir / out, 1); }).kind(),
                ErrorKind::kRun);
      EXPECT_FALSE(env().exists(dir / "new"));
      EXPECT_EQ(env().list(dir.path()).size(), 1u) << out;
      EXPECT_TRUE(env().list(dir / "there").empty()) << out;
    }
    for (const char* out : {"new/", "there"}) {
      write_dataset(env(), *synth, dir / out, 1);
      EXPECT_EQ(open_dataset(env(), dir / out)->size(), 4u) << spec << " in " << out;
      for (const FileInfo& info : env().list(dir / out))
        EXPECT_NE(info.name.front(), '.') << info.name;
    }
    EXPECT_EQ(env().list(dir.path()).size(), 2u);
  }
}

TEST(WriteDataset, AFolderAppearsOnlyWhenComplete) {
  const TempDir dir;
  const auto synth = open_dataset(env(), "synth:count=4,size=8,classes=2");
  bool was_there = false;
  struct Cancelled {};
  EXPECT_THROW(write_dataset(env(), *synth, dir / "set", 1,
                             [&](size_t done, size_t) {
                               was_there = was_there || env().exists(dir / "set");
                               if (done == 3) throw Cancelled();
                             }),
               Cancelled);
  EXPECT_FALSE(was_there);
  EXPECT_TRUE(env().list(dir.path()).empty());
}

TEST(WriteDataset, FilesOfAKilledProcessAreRemoved) {
  const TempDir dir;
  const auto synth = open_dataset(env(), "synth:count=4,size=8,classes=2");
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string half = "/cross/00000000.jpg",
                    far = dir / "set.tmp-" + std::to_string(dead) + "-1";
  write_file(testing::temporary_of(dir / "set", dead) + half, "half");
  write_file(testing::temporary_of(dir / "there/.incomplete", dead) + half, "half");
  const std::string alive = testing::temporary_of(dir / "set", getppid()) + "/notes.txt";
  write_file(alive, "another process is at work");
  write_file(far, "another machine's process is at work");
  for (const char* out : {"set", "there"}) {
    write_dataset(env(), *synth, dir / out, 1);
    EXPECT_EQ(open_dataset(env(), dir / out)->size(), 4u) << out;
  }
  EXPECT_EQ(env().list(dir.path()).size(), 4u);
  EXPECT_TRUE(env().exists(far));
  EXPECT_TRUE(env().exists(alive));
}

TEST(WriteDataset, LongClassNamesUseTheUstarPrefix) {
  const auto header = make_tar_header(std::string(150, 'c') + "/00000001.jpg", 3);
  const auto parsed = parse_tar_header(std::span<const std::byte, 512>(header.data(), 512), "x", 0);
  EXPECT_EQ(parsed.name, std::string(150, 'c') + "/00000001.jpg");
  EXPECT_EQ(error_of([] { make_tar_header(std::string(156, 'c') + "/1.jpg", 3); }).kind(),
            ErrorKind::kUsage);
  EXPECT_EQ(error_of([] { make_tar_header("c/" + std::string(101, 'n'), 3); }).kind(),
            ErrorKind::kUsage);
}

}  // namespace
}  // namespace saturate
