// Env where the system fails: storage that is away, file systems that lack a call.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/system_call.h"
#include "tests/data_testing.h"
#include "tests/failing_calls.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::fail_calls;
using testing::TempDir;
using testing::write_file;

const std::vector<long> kExamining = {
    SYS_faccessat,
    SYS_newfstatat,
#ifdef SYS_access
    SYS_access,
    SYS_stat,
#endif
};

class FailingSystem : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_fail_calls()) GTEST_SKIP() << "this system filters no calls";
  }
  // Ends the child process of an EXPECT_EXIT with 0 if the condition holds.
  [[noreturn]] static void end(bool good) { std::_Exit(good ? 0 : 1); }
  static bool fails_with(ErrorKind kind, const std::function<void()>& body) {
    return error_of(body).kind() == kind;
  }

  const TempDir dir;
  Env& env = Env::posix();
};

TEST_F(FailingSystem, APathThatCannotBeExaminedIsNotTakenForMissing) {
  const std::string path = dir / "file";
  write_file(path, "x");
  for (const std::string& missing : {dir / "none", path + "/x", std::string(5000, 'x')}) {
    EXPECT_FALSE(env.exists(missing));
    EXPECT_FALSE(env.is_directory(missing));
  }
  EXPECT_FALSE(env.is_directory(path));
  const auto run = [&](int error) {
    fail_calls(kExamining, error);
    end(fails_with(ErrorKind::kRun, [&] { env.exists(path); }) &&
        fails_with(ErrorKind::kRun, [&] { env.is_directory(dir.path()); }));
  };
  for (const int error : {EIO, ESTALE, ENOTCONN, ETIMEDOUT, ENOMEM})
    EXPECT_EXIT(run(error), ::testing::ExitedWithCode(0), "") << error;
}

TEST_F(FailingSystem, AReadThatTheStorageFailsIsNotTheFilesFault) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENODEV, ESTALE, ETIMEDOUT, ENOTCONN, EHOSTDOWN})
    EXPECT_EQ(kind_of_failed_read(error), ErrorKind::kRun) << error;
  for (const int error : {EIO, ENOENT, EACCES, EISDIR})
    EXPECT_EQ(kind_of_failed_read(error), ErrorKind::kData) << error;
  const std::string path = dir / "file";
  write_file(path, "x");
  const auto run = [&](int error, ErrorKind kind) {
    const auto file = env.open_readable(path);
    fail_calls({SYS_openat, SYS_pread64}, error);
    std::byte byte[1];
    end(fails_with(kind, [&] { file->read_at(0, byte); }) &&
        fails_with(kind, [&] { env.open_readable(path); }) &&
        fails_with(kind, [&] { read_file(env, path); }) &&
        fails_with(kind, [&] { env.list(dir.path()); }));
  };
  EXPECT_EXIT(run(ESTALE, ErrorKind::kRun), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(EIO, ErrorKind::kData), ::testing::ExitedWithCode(0), "");
}

TEST_F(FailingSystem, WithoutFlockALockIsOneOfTheOpenFile) {
  const std::string path = dir / ".lock";
  const auto run = [&](int error) {
    fail_calls({SYS_flock}, error);
    bool good = !is_locked(path);
    {
      const auto lock = env.lock(path);
      good = good && is_locked(path) && fails_with(ErrorKind::kUsage, [&] { env.lock(path); });
    }
    end(good && !is_locked(path) && env.lock(path));
  };
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK})
    EXPECT_EXIT(run(error), ::testing::ExitedWithCode(0), "") << error;
}

TEST_F(FailingSystem, WithoutAnyLocksAFileIsUsedWithAWarning) {
  const std::string path = dir / ".lock";
  const auto run = [&] {
    fail_calls({SYS_flock, SYS_fcntl}, ENOSYS);
    const auto one = env.lock(path), other = env.lock(path);
    end(one && other && !is_locked(path));
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "lock cannot be locked");
}

TEST_F(FailingSystem, AFolderThatCannotBeSyncedIsNoErrorWhereNoneCan) {
  const auto run = [&](int error) {
    fail_calls({SYS_fsync}, error);
    env.sync_directory(dir.path());
    end(true);
  };
  for (const int error : {EINVAL, ENOTSUP, EBADF})
    EXPECT_EXIT(run(error), ::testing::ExitedWithCode(0), "") << error;
  const auto run_on_bad_disk = [&] {
    fail_calls({SYS_fsync}, EIO);
    end(fails_with(ErrorKind::kRun, [&] { env.sync_directory(dir.path()); }));
  };
  EXPECT_EXIT(run_on_bad_disk(), ::testing::ExitedWithCode(0), "");
}

TEST(PosixFolder, ThatMayOnlyBeWrittenIsNotSynced) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every folder";
  const TempDir dir;
  const std::string folder = dir / "drop";
  std::filesystem::create_directory(folder);
  ASSERT_EQ(chmod(folder.c_str(), 0300), 0);
  EXPECT_NO_THROW(write_atomically(Env::posix(), folder + "/file", "text"));
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  EXPECT_EQ(testing::read_text(folder + "/file"), "text");
}

TEST(PosixFreeBytes, AreUnlimitedWhereTheFileSystemCountsNone) {
  struct statvfs info;
  if (::statvfs("/proc", &info) != 0 || info.f_blocks != 0)
    GTEST_SKIP() << "no file system without blocks";
  EXPECT_EQ(Env::posix().free_bytes("/proc"), UINT64_MAX);
}

}  // namespace
}  // namespace saturate
