#include <gtest/gtest.h>
#include <lmdb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "data/export.h"
#include "data/lmdb_format.h"
#include "data/lmdb_tree.h"
#include "tests/failing_calls.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::format_golden;
using testing::gunzip;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

class LmdbFiles : public ::testing::Test {
 protected:
  void pack(const Dataset& dataset, const std::string& folder) {
    PackOptions options;
    options.out = "lmdb:" + folder;
    options.threads = 3;
    pack_dataset(env(), dataset, options);
  }
  Error open(const std::string& text) {
    write_file(dir / "bad/data.mdb", text);
    const Error error = error_of([&] { open_dataset(env(), "lmdb:" + (dir / "bad")); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.where().find("bad"), std::string::npos);
    EXPECT_FALSE(error.remedy().empty());
    return error;
  }
  TempDir dir;
};

// The oracle implements docs/lmdb_format.md with py-lmdb, independently of the source.
TEST_F(LmdbFiles, TheOneWrittenByPythonIsRead) {
  write_file(dir / "python/data.mdb", gunzip(format_golden("python.mdb.gz")));
  testing::expect_samples(*open_dataset(env(), "lmdb:" + (dir / "python")), "python.shard",
                          dir / "python:");
  const std::string file = dir / "python/data.mdb";
  testing::expect_samples(*open_dataset(env(), "lmdb:" + file), "python.shard", file + ":");
}

TEST_F(LmdbFiles, HoldThePackedSamples) {
  testing::write_folder_dataset(dir / "set", 300);
  const auto folder = open_dataset(env(), "folder:" + (dir / "set"));
  pack(*folder, dir / "new/set");
  const auto lmdb = open_dataset(env(), "lmdb:" + (dir / "new/set"));
  testing::expect_equal(*folder, *lmdb);
  const auto again = open_dataset(env(), "lmdb:" + (dir / "new/set"));  // twice in one process
  testing::expect_equal(*lmdb, *again);
  pack(testing::OracleDataset(), dir / "oracle");
  testing::expect_equal(testing::OracleDataset(), *open_dataset(env(), "lmdb:" + (dir / "oracle")));
}

// More than one transaction, with names and records of all sizes around a page's.
TEST_F(LmdbFiles, LargeAndOddSizedRecordsAreKept) {
  class Odd : public Dataset {
   public:
    size_t size() const override { return 60; }
    const std::vector<std::string>& classes() const override { return classes_; }
    void read(size_t i, Sample& out) const override {
      const size_t base[] = {0, 1950, 4000, 4096 * 3, 1 << 20};
      out.name = std::string(i % 7 * 100, 'n');
      out.label = 0;
      out.bytes.assign(base[i % 5] + i, std::byte(i));
    }

   private:
    std::vector<std::string> classes_{std::string(9000, 'c')};
  } const odd;
  pack(odd, dir / "odd");
  testing::expect_equal(odd, *open_dataset(env(), "lmdb:" + (dir / "odd")));
}

TEST_F(LmdbFiles, ForeignAndTruncatedOnesAreRefused) {
  EXPECT_NE(open(gunzip(format_golden("foreign.mdb.gz"))).reason().find("not written by saturate"),
            std::string::npos);
  EXPECT_NE(open("").reason().find("not an LMDB"), std::string::npos);
  EXPECT_NE(open(std::string(50'000, 'x')).reason().find("not an LMDB"), std::string::npos);
  const std::string whole = gunzip(format_golden("python.mdb.gz"));
  for (size_t size = 0; size < whole.size(); size += 512) open(whole.substr(0, size));
  EXPECT_NE(open(whole.substr(0, whole.size() - 4096)).reason().find("truncated"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { open_dataset(env(), "lmdb:" + (dir / "none")); }).kind(),
            ErrorKind::kData);
  EXPECT_EQ(error_of([&] { open_dataset(env(), "lmdb:"); }).kind(), ErrorKind::kUsage);
}

class Many : public Dataset {
 public:
  size_t size() const override { return 500; }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t i, Sample& out) const override {
    out.name = std::string(i % 7 * 20, 'n');
    out.label = 0;
    out.bytes.assign(i % 50 == 0 ? 9000 : 60, std::byte(i));
  }

 private:
  std::vector<std::string> classes_{"c"};
};

// LMDB's own code ends the process with an assertion if its tree is damaged.
TEST_F(LmdbFiles, DamageToAnyPageIsAnErrorOrData) {
  const Many many;
  pack(many, dir / "many");
  const std::string whole = read_text(dir / "many/data.mdb");
  size_t refused = 0, damaged = 0, sound = 0;
  Sample sample;
  const auto try_with = [&](const std::string& text) {
    write_file(dir / "bad/data.mdb", text);
    try {
      const auto dataset = open_dataset(env(), "lmdb:" + (dir / "bad"));
      for (size_t i = 0; i < dataset->size(); ++i) {
        try {
          dataset->read(i, sample);
          ++sound;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kData);
          ++damaged;
        }
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_FALSE(error.remedy().empty());
      ++refused;
    }
  };
  for (size_t at = 0; at < whole.size(); at += 64) {
    if (at % 4096 >= 128 && at % 1088 != 0) continue;  // headers, and some of the rest
    std::string text = whole;
    text.replace(at, 64, 64, '\0');
    try_with(text);
  }
  for (const size_t meta : {size_t{0}, size_t{4096}}) {  // by its fields
    for (size_t at = meta; at < meta + 160; at += 4) {
      for (const char byte : {'\0', '\xff'}) {
        std::string text = whole;
        text.replace(at, 4, 4, byte);
        try_with(text);
      }
    }
  }
  RandomStream random(11, 0, 0, RandomUse::kSynthetic);
  for (int round = 0; round < 300; ++round) {
    std::string text = whole;
    for (int i = 0; i < 4; ++i) text[size_t(random.below(text.size()))] = char(random.next_u32());
    try_with(text);
  }
  EXPECT_GT(refused, 50u);
  EXPECT_GT(damaged, 50u);
  EXPECT_GT(sound, 10'000u);
}

// Otherwise a small file could keep a reader busy forever, level by level.
TEST_F(LmdbFiles, BranchesThatLeadToTheSamePageRepeatedlyAreRefused) {
  std::string text = gunzip(format_golden("python.mdb.gz"));
  ASSERT_EQ(text.size(), 3u * 4096);  // the last is a leaf, and the root
  std::string branch(4096, '\0');
  branch[0] = 3;
  branch[10] = 1;
  constexpr int kNodes = 200, kLow = 16 + 2 * kNodes, kNode = 600;
  branch[12] = char(kLow & 0xff);
  branch[13] = char(kLow >> 8);
  for (size_t i = 0; i < kNodes; ++i) {
    branch[16 + 2 * i] = char(kNode & 0xff);
    branch[17 + 2 * i] = char(kNode >> 8);
  }
  branch[kNode] = 2;  // all of them
  for (const size_t meta : {size_t{0}, size_t{4096}}) {
    text[meta + 94] = 2;   // levels
    text[meta + 128] = 3;  // root
    text[meta + 136] = 3;  // last page
  }
  write_file(dir / "loop.mdb", text + branch);
  const LmdbTree tree(env().open_readable(dir / "loop.mdb"), dir / "loop.mdb");
  size_t records = 0;
  const auto count = [&](std::string_view, const LmdbValue&) { ++records; };
  EXPECT_TRUE(tree.visit_last(count));
  EXPECT_NE(error_of([&] { tree.walk(count); }).reason().find("damaged"), std::string::npos);
  EXPECT_LT(records, 40u);
}

// Puts one record into an LMDB. If `begun` is a pipe, the transaction stays open: a byte is written
// there, and the process waits to be killed.
void put(const std::string& folder, std::string key, std::vector<std::byte> value, int begun = -1) {
  MDB_env* opened = nullptr;
  ASSERT_EQ(mdb_env_create(&opened), 0);
  const LmdbEnvPtr lmdb(opened);
  ASSERT_EQ(mdb_env_set_mapsize(opened, 1 << 24), 0);
  ASSERT_EQ(mdb_env_open(opened, folder.c_str(), 0, 0644), 0);
  MDB_txn* txn = nullptr;
  ASSERT_EQ(mdb_txn_begin(opened, nullptr, 0, &txn), 0);
  MDB_dbi table;
  ASSERT_EQ(mdb_dbi_open(txn, nullptr, 0, &table), 0);
  MDB_val name{key.size(), key.data()}, data{value.size(), value.data()};
  ASSERT_EQ(mdb_put(txn, table, &name, &data, 0), 0);
  if (begun >= 0) {
    ASSERT_EQ(write(begun, "x", 1), 1);
    pause();
  }
  ASSERT_EQ(mdb_txn_commit(txn), 0);
}

TEST_F(LmdbFiles, BadRecordsAreErrors) {
  const testing::OracleDataset oracle;
  const std::string folder = dir / "lmdb";
  const auto replace = [&](const std::string& key, std::vector<std::byte> value) {
    std::filesystem::remove_all(folder);
    pack(oracle, folder);
    put(folder, key, std::move(value));
  };
  const auto open_reason = [&] {
    return error_of([&] { open_dataset(env(), "lmdb:" + folder); }).reason();
  };
  replace("0000000012", {});
  EXPECT_NE(open_reason().find("0000000009"), std::string::npos);
  replace("foreign", {});
  EXPECT_NE(open_reason().find("no record"), std::string::npos);
  auto meta = encode_meta({8, oracle.classes()});
  replace("saturate", meta);
  EXPECT_NE(open_reason().find("9 records where 8"), std::string::npos);
  meta[8] = std::byte{2};
  replace("saturate", meta);
  EXPECT_NE(open_reason().find("version 2"), std::string::npos);
  meta = encode_meta({9, oracle.classes()});
  meta.resize(30);
  replace("saturate", meta);
  EXPECT_NE(open_reason().find("damaged"), std::string::npos);

  Sample sample;
  oracle.read(4, sample);
  const auto good = encode_record(sample);
  const auto read_reason = [&](std::vector<std::byte> value) {
    replace("0000000004", std::move(value));
    const auto dataset = open_dataset(env(), "lmdb:" + folder);
    dataset->read(3, sample);
    const Error error = error_of([&] { dataset->read(4, sample); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.reason();
  };
  auto bad = good;
  bad.back() ^= std::byte{1};
  EXPECT_NE(read_reason(bad).find("checksum"), std::string::npos);
  for (size_t size : {size_t{0}, size_t{10}, size_t{30}}) {
    bad.assign(good.begin(), good.begin() + ptrdiff_t(size));
    EXPECT_NE(read_reason(bad).find("header"), std::string::npos);
  }
  bad = good;
  bad[0] = std::byte{3};
  EXPECT_NE(read_reason(bad).find("of class 3 of 3"), std::string::npos);
  bad = good;
  bad[4] = std::byte{2};
  EXPECT_NE(read_reason(bad).find("pixels"), std::string::npos);
}

// Another process has a transaction open, then commits: the reader sees neither, and does not wait.
TEST_F(LmdbFiles, AnOpenReaderSeesTheLastCommitAtItsOpening) {
  const testing::OracleDataset oracle;
  const std::string folder = dir / "lmdb";
  pack(oracle, folder);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t writer = fork();
  if (writer == 0) {
    put(folder, "0000000004", {}, ends[1]);
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  const auto during = open_dataset(env(), "lmdb:" + folder);
  testing::expect_equal(oracle, *during);
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);

  const pid_t second = fork();
  if (second == 0) {
    for (int i = 0; i < 20; ++i) put(folder, "0000000004", std::vector<std::byte>(5000));
    _exit(0);
  }
  int status = 0;
  waitpid(second, &status, 0);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  testing::expect_equal(oracle, *during);  // the old pages have not been used again
  close(ends[0]);
  close(ends[1]);
}

TEST_F(LmdbFiles, AReadOnlyFolderIsRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const testing::OracleDataset oracle;
  pack(oracle, dir / "lmdb");
  std::filesystem::permissions(
      dir / "lmdb", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  testing::expect_equal(oracle, *open_dataset(env(), "lmdb:" + (dir / "lmdb")));
  std::filesystem::permissions(dir / "lmdb", std::filesystem::perms::owner_all);
}

// Such as Lustre without flock, or NFS without its lock daemon.
TEST_F(LmdbFiles, IsReadWhereTheFileSystemHasNoLocks) {
  if (!testing::can_fail_calls()) GTEST_SKIP() << "this system filters no calls";
  const testing::OracleDataset oracle;
  pack(oracle, dir / "lmdb");
  const std::string uri = "lmdb:" + (dir / "lmdb");
  const auto run = [&](int error) {
    testing::fail_calls({SYS_fcntl}, error);
    std::_Exit(open_dataset(env(), uri)->size() == oracle.size() ? 0 : 1);
  };
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP})
    EXPECT_EXIT(run(error), ::testing::ExitedWithCode(0), "") << error;
  const auto run_on_bad_disk = [&] {
    testing::fail_calls({SYS_fcntl}, EIO);
    const Error failed = error_of([&] { open_dataset(env(), uri); });
    std::_Exit(failed.remedy() == "Check the file system" ? 0 : 1);
  };
  EXPECT_EXIT(run_on_bad_disk(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace saturate
