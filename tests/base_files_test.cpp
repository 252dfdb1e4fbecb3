#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/printable.h"
#include "saturate/data/env.h"
#include "saturate/data/registry.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

TEST(Error, IsOneLineOfProblemPlaceAndRemedy) {
  const Error error =
      error_of([] { fail(ErrorKind::kData, "bad\nthing", "a\tb\x7f.jpg", "Try again"); });
  EXPECT_STREQ(error.what(), "bad\\x0athing (a\\x09b\\x7f.jpg). Try again");
  EXPECT_EQ(error.reason(), "bad\nthing");
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_NE(std::string(error.thrown_at().file_name()).find("base_files_test"), std::string::npos);
}

// It may be a run's folder, that of a cache, or an output.
TEST(Error, OfAFullDiskHasARemedyForAnyFolder) {
  const auto file = Env::posix().open_writable("/dev/full");
  const Error error = error_of([&] { file->append(std::vector<std::byte>(1)); });
  EXPECT_EQ(error.remedy(), "Free some space there, or choose a folder on another disk");
}

TEST(Registry, NamesTheNearestEntry) {
  const std::string known[] = {"train.batch", "train.epochs", "optimizer.lr"};
  EXPECT_EQ(nearest_name("train.bacth", known), "train.batch");
  EXPECT_EQ(nearest_name("optimizer.rl", known), "optimizer.lr");
  EXPECT_EQ(nearest_name("zzz", known), "");
  EXPECT_EQ(suggest("trian.epochs", known), "Did you mean \"train.epochs\"?");
  EXPECT_EQ(suggest("zzz", known), "Known: train.batch, train.epochs, optimizer.lr");
}

TEST(Registry, UnknownNameIsAUsageError) {
  constexpr RegistryEntry<int> kTable[] = {{"alpha", "first", 1}, {"beta", "second", 2}};
  const std::span<const RegistryEntry<int>> table = kTable;
  EXPECT_EQ(find_entry(table, "beta", "x").make, 2);
  const Error error = error_of([&] { find_entry(table, "betta", "model.name"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_STREQ(error.what(), "unknown name \"betta\" (model.name). Did you mean \"beta\"?");
}

TEST(PosixEnv, WritesAppendsReadsListsRenamesRemoves) {
  const TempDir dir;
  Env& env = Env::posix();
  env.make_directories(dir / "a/b/c");
  env.make_directories(dir / "a/b/c");
  const std::string path = dir / "a/file";
  for (bool append : {false, true}) {
    const auto file = append ? env.open_appendable(path) : env.open_writable(path);
    file->append(std::as_bytes(std::span("hello", 5)));
    file->sync();
    file->close();
  }
  EXPECT_EQ(testing::to_text(read_file(env, path)), "hellohello");
  const auto file = env.open_readable(path);
  EXPECT_EQ(file->size(), 10u);
  std::byte part[3];
  file->read_at(4, part);
  EXPECT_EQ(testing::to_text(part), "ohe");

  const auto entries = env.list(dir / "a");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "b");
  EXPECT_TRUE(entries[0].is_directory);
  EXPECT_EQ(entries[1].name, "file");
  EXPECT_FALSE(entries[1].is_directory);

  env.rename(path, dir / "moved");
  EXPECT_FALSE(env.exists(path));
  EXPECT_TRUE(env.exists(dir / "moved"));
  env.sync_directory(dir.path());
  env.remove(dir / "moved");
  env.remove(dir / "moved");
  EXPECT_FALSE(env.exists(dir / "moved"));
}

TEST(PosixEnv, RemovingATreeDoesNotFollowLinks) {
  const TempDir dir;
  Env& env = Env::posix();
  write_file(dir / "mine/notes.txt", "kept");
  write_file(dir / "tree/a/b/file", "x");
  std::filesystem::create_directory_symlink(dir / "mine", dir / "tree/a/link");
  env.remove_tree(dir / "tree");
  env.remove_tree(dir / "tree");
  EXPECT_FALSE(env.exists(dir / "tree"));
  EXPECT_EQ(read_text(dir / "mine/notes.txt"), "kept");
}

TEST(PosixEnv, FailuresNamePathAndReason) {
  const TempDir dir;
  Env& env = Env::posix();
  const Error missing = error_of([&] { env.open_readable(dir / "nothing"); });
  EXPECT_EQ(missing.kind(), ErrorKind::kData);
  EXPECT_EQ(missing.where(), dir / "nothing");
  EXPECT_NE(missing.reason().find("No such file"), std::string::npos);
  EXPECT_EQ(error_of([&] { env.open_readable(dir.path()); }).kind(), ErrorKind::kData);
  EXPECT_EQ(error_of([&] { env.list(dir / "nothing"); }).kind(), ErrorKind::kData);
  EXPECT_EQ(error_of([&] { env.open_writable(dir / "no/file"); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(error_of([&] { env.rename(dir / "no", dir / "yes"); }).kind(), ErrorKind::kRun);

  write_file(dir / "short", "abc");
  std::byte four[4];
  const auto file = env.open_readable(dir / "short");
  EXPECT_EQ(error_of([&] { file->read_at(0, four); }).kind(), ErrorKind::kData);
}

TEST(PosixEnv, APipeIsRefusedWithoutWaiting) {
  const TempDir dir;
  const std::string pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Error error = error_of([&] { read_file(Env::posix(), pipe); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), pipe);
  EXPECT_EQ(error.reason(), "not a regular file");
}

TEST(LineReader, ReadsAsGetlineDoes) {
  const TempDir dir;
  const std::string block(1 << 20, 'x');
  for (const std::string& text : {std::string(), std::string("\n"), std::string("a\n\nb"),
                                  block + "\n" + block, "a\n" + block + block + "\n\n"}) {
    write_file(dir / "text", text);
    LineReader lines(Env::posix(), dir / "text");
    std::istringstream expected(text);
    std::string line, wanted;
    while (std::getline(expected, wanted)) {
      ASSERT_TRUE(lines.next(line));
      EXPECT_TRUE(line == wanted) << line.size();
      EXPECT_EQ(lines.is_cut(), expected.eof());
    }
    EXPECT_FALSE(lines.next(line));
  }
  std::filesystem::resize_file(dir / "text", 100 << 20);
  LineReader lines(Env::posix(), dir / "text");
  std::string line;
  size_t longest = 0;
  while (lines.next(line)) longest = std::max(longest, line.size());
  EXPECT_GE(longest, size_t{64} << 20);
  EXPECT_LE(longest, size_t{65} << 20) << "the rest of a longer line is left out";
}

// A sparse file may have any size.
TEST(PosixEnv, AFileLargerThanTheMemoryIsRefused) {
  const TempDir dir;
  write_file(dir / "sparse.jpg", "abc");
  const uintmax_t memory = uintmax_t(sysconf(_SC_PHYS_PAGES)) * uintmax_t(sysconf(_SC_PAGESIZE));
  std::error_code failed;
  std::filesystem::resize_file(dir / "sparse.jpg", memory + 1, failed);
  if (failed) GTEST_SKIP() << "this file system has no such files: " << failed.message();
  const Error error = error_of([&] { read_file(Env::posix(), dir / "sparse.jpg"); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), dir / "sparse.jpg");
  EXPECT_NE(error.reason().find("GB of memory"), std::string::npos) << error.reason();
}

TEST(PosixEnv, ClockIsMonotonic) {
  Env& env = Env::posix();
  const int64_t before = env.now_ns();
  env.sleep_ns(1000);
  EXPECT_GE(env.now_ns(), before + 1000);
}

TEST(FileLock, IsSeenWithoutBeingTaken) {
  const TempDir dir;
  const std::string path = dir / ".lock";
  EXPECT_FALSE(is_locked(path));
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    const auto lock = Env::posix().lock(path);
    EXPECT_TRUE(is_locked(path));
    EXPECT_EQ(read_text(path), std::to_string(::getpid()));
    EXPECT_EQ(error_of([&] { Env::posix().lock(path); }).kind(), ErrorKind::kUsage);
  }
  write_file(path, "12345");
  EXPECT_FALSE(is_locked(path));
  EXPECT_EQ(read_text(path), "12345");
}

TEST(FileLock, IsNotRefusedWhileAnotherProcessChecksIt) {
  const TempDir dir;
  const std::string path = dir / ".lock";
  write_file(path, "");
  const int looking = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(looking, LOCK_SH | LOCK_NB), 0);  // as is_locked() does
  std::thread ending([looking] {
    Env::posix().sleep_ns(20'000'000);
    ::close(looking);
  });
  EXPECT_NO_THROW(Env::posix().lock(path));
  ending.join();
}

TEST(Printable, ControlCharactersAreEscapedAndNothingElse) {
  EXPECT_EQ(printable("\x1b[31mred\n\t\x7f"), "\\x1b[31mred\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("caf\u00e9 \u732b \xff\xc2"), "caf\u00e9 \u732b \xff\xc2");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J\xc2\xa0"),
            "\\xc2\\x9b"
            "2J\xc2\xa0");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
}

// Sizes around the blocks that are written directly, appended in pieces that align with none of
// them, to a disk and to a file system in memory, which may refuse direct writes.
TEST(PosixEnv, BypassingTheCacheChangesNoByte) {
  const TempDir dir;
  Env& env = Env::posix();
  std::vector<std::string> paths = {dir / "file"};
  if (env.is_directory("/dev/shm"))
    paths.push_back("/dev/shm/saturate-test-" + std::to_string(getpid()));
  for (const std::string& path : paths)
    for (const size_t size : {0u, 1u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 3'200'001u}) {
      std::string text(size, '\0');
      for (size_t i = 0; i < size; ++i) text[i] = char(i * 2654435761u >> 24);
      const auto file = env.open_writable(path);
      file->bypass_cache();
      for (size_t at = 0; at < size; at += 300'007)
        file->append(
            std::as_bytes(std::span(text).subspan(at, std::min<size_t>(300'007, size - at))));
      file->sync();
      file->append(std::as_bytes(std::span("end", 3)));
      file->close();
      EXPECT_EQ(read_text(path), text + "end") << size << " bytes in " << path;
      env.remove(path);
    }
}

TEST(WriteAtomically, WritesThroughDevicesAndPipes) {
  const TempDir dir;
  write_file(dir / "target", "old");
  std::filesystem::create_symlink("target", dir.path() + "/link");
  write_atomically(Env::posix(), dir / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_text(dir / "target"), "new");

  const std::string pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string found(8, ' ');
  std::thread reader([&] {
    const int from = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    found.resize(size_t(std::max<ssize_t>(0, read(from, found.data(), found.size()))));
    close(from);
  });
  write_atomically(Env::posix(), pipe, "piped");
  reader.join();
  EXPECT_EQ(found, "piped");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(WriteAtomically, ALinkToAMissingFileRemainsALink) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "there");
  std::filesystem::create_symlink("there/second", dir / "first");
  std::filesystem::create_symlink(dir / "there/file", dir / "there/second");
  for (const std::string text : {"new", "newer"}) {
    write_atomically(Env::posix(), dir / "first", text);
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "first"));
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "there/second"));
    EXPECT_EQ(read_text(dir / "there/file"), text);
  }
}

// For example /dev/stdout, a link to /proc/self/fd/1.
TEST(WriteAtomically, AFileOpenInAProcessKeepsReceiving) {
  const TempDir dir;
  for (const int flag : {0, O_APPEND}) {
    write_file(dir / "log", "old\n");
    const int log = ::open((dir / "log").c_str(), O_WRONLY | O_CLOEXEC | flag);
    ASSERT_GE(log, 0);
    ::lseek(log, 0, SEEK_END);
    const std::string number = std::to_string(log);
    std::filesystem::create_symlink("/proc/self/fd/" + number, dir / "link");
    for (const std::string& path : {"/proc/self/fd/" + number, "/dev/fd/" + number, dir / "link"})
      write_atomically(Env::posix(), path, "new\n");
    EXPECT_EQ(::write(log, "end\n", 4), 4);
    EXPECT_EQ(read_text(dir / "log"), "old\nnew\nnew\nnew\nend\n");
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
    std::filesystem::remove(dir / "log");
    write_atomically(Env::posix(), dir / "link", "to a file that was removed");
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
    std::filesystem::remove(dir / "link");
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
    ::close(log);
  }
}

TEST(Utf8, InvalidBytesAreRejected) {
  EXPECT_EQ(as_utf8("gr\xc3\xbcn"), "gr\xc3\xbcn");
  EXPECT_EQ(as_utf8("gr\xfcn"), "gr\\xfcn");
  EXPECT_EQ(as_utf8("gr\xf6n"), "gr\\xf6n");
  EXPECT_EQ(as_utf8("a\n\xff"), "a\n\\xff");
  EXPECT_EQ(as_utf8(as_utf8("gr\xfcn")), "gr\\xfcn");
}

TEST(Utf8, HasNoSurrogatesAndEndsAt10ffff) {
  EXPECT_EQ(as_utf8("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(as_utf8("\xed\xbf\xbf"), "\\xed\\xbf\\xbf");
  EXPECT_EQ(as_utf8("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  for (const char* valid : {"\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(as_utf8(valid), valid);
}

// A failure before the rename leaves the old file, one after it the new file, never a mixture; the
// temporary file is removed either way.
TEST(WriteAtomically, AFailureOfAnyOperationLeavesACompleteFile) {
  const TempDir dir;
  const std::string path = dir / "state";
  const std::string old_text(5000, 'o'), new_text(7000, 'n');
  uint64_t operations = 0;
  {
    FaultEnv env(Env::posix());
    write_atomically(env, path, old_text);
    operations = env.count({});
    EXPECT_EQ(env.count({FileOp::kSync, {}}), 1u);
    EXPECT_EQ(env.count({FileOp::kSyncDirectory, dir.path()}), 1u);
  }
  ASSERT_EQ(operations, 6u);  // create, write, sync, close, rename, sync folder
  for (uint64_t k = 0; k < operations; ++k) {
    write_file(path, old_text);
    FaultEnv env(Env::posix());
    env.inject({.match = {}, .skip = k, .times = 1, .error = ENOSPC, .written = 1234});
    const Error error = error_of([&] { write_atomically(env, path, new_text); });
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find("No space left on device"), std::string::npos);
    const bool renamed = k == operations - 1;
    EXPECT_EQ(error.where(), renamed ? dir.path() : path) << "operation " << k;
    EXPECT_EQ(read_text(path), renamed ? new_text : old_text) << "operation " << k;
    EXPECT_EQ(env.list(dir.path()).size(), 1u) << "operation " << k;
  }
}

TEST(FaultEnv, ShortWriteReachesTheFile) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.inject({.match = {FileOp::kWrite, "log"}, .skip = 1, .error = EIO, .written = 2});
  const auto file = env.open_writable(dir / "log");
  const auto text = std::as_bytes(std::span("abcd", 4));
  file->append(text);
  EXPECT_THROW(file->append(text), Error);
  EXPECT_THROW(file->append(text), Error);
  file->close();
  EXPECT_EQ(read_text(dir / "log"), "abcdabab");
  const auto other = env.open_writable(dir / "other");
  other->append(text);  // the rule is about another path
}

TEST(FaultEnv, FailuresHaveEnvsKinds) {
  const TempDir dir;
  write_file(dir / "f", "abc");
  FaultEnv env(Env::posix());
  env.inject({.match = {FileOp::kRead, ""}, .times = 1, .error = EIO});
  EXPECT_EQ(error_of([&] { read_file(env, dir / "f"); }).kind(), ErrorKind::kData);
  EXPECT_EQ(read_file(env, dir / "f").size(), 3u);
  env.inject({.match = {FileOp::kOpen, ""}, .error = EMFILE});
  EXPECT_EQ(error_of([&] { read_file(env, dir / "f"); }).kind(), ErrorKind::kRun);
  EXPECT_TRUE(env.exists(dir / "f")) << "no rule names it";
  env.inject({.match = {FileOp::kExamine, ""}, .error = EIO});
  EXPECT_EQ(error_of([&] { env.exists(dir / "f"); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(error_of([&] { env.is_directory(dir / "f"); }).kind(), ErrorKind::kRun);
  env.clear();
  EXPECT_EQ(read_file(env, dir / "f").size(), 3u);
}

TEST(FaultEnv, DelaysAdvanceAFakeClock) {
  const TempDir dir;
  write_file(dir / "f", "abc");
  FaultEnv env(Env::posix());
  env.use_fake_clock(5);
  env.delay({FileOp::kRead, ""}, 1'000'000'000, 1'000'000'000);
  read_file(env, dir / "f");
  EXPECT_EQ(env.now_ns(), 1'000'000'005);
  env.sleep_ns(7);
  EXPECT_EQ(env.now_ns(), 1'000'000'012);
}

}  // namespace
}  // namespace saturate
