// Locks of files: flock(), or where a file system lacks it, those of open file descriptions.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/files.h"
#include "base/printable.h"
#include "base/system_call.h"

namespace saturate {
namespace {

// Whether the file system has no locks of the kind, or none at present.
bool lacks_locks(int error) {
  return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

struct flock whole_file(short type) {
  return {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0, .l_pid = 0};
}

bool set_description_lock(int fd, short type) {
  struct flock whole = whole_file(type);
  return ::fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(int fd) : fd_(fd) {}
  // Closing alone does not unlock while a forked process has it open.
  ~PosixFileLock() override {
    if (::getpid() != owner_) return;
    ::flock(fd_.get(), LOCK_UN);
    set_description_lock(fd_.get(), F_UNLCK);
  }

 private:
  FileDescriptor fd_;
  const pid_t owner_ = ::getpid();
};

// Whether the lock was taken; else errno says why not. is_locked() takes shared locks for an
// instant, which are waited for.
bool take_lock(int fd) {
  constexpr int kMostTries = 10'000;
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (lacks_locks(errno)) return set_description_lock(fd, F_WRLCK);
    if (errno != EWOULDBLOCK || ::flock(fd, LOCK_SH | LOCK_NB) != 0) return false;
    ::flock(fd, LOCK_UN);
    Env::posix().sleep_ns(1'000'000);
  }
  errno = EWOULDBLOCK;
  return false;
}

void warn_of_no_lock(const std::string& path, int error) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  print_warning(path + " cannot be locked (" + std::strerror(error) +
                "): another process that uses it at the same time will not be refused. Mount the "
                "file system with locks (Lustre: flock), or use a folder on another one");
}

// Whether the path still names the file: the owner of its lock may have removed it, and another
// process made it again.
bool is_named(int fd, const std::string& path) {
  struct stat held, named;
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

std::unique_ptr<FileLock> lock_file(const std::string& path) {
  constexpr int kTries = 10;  // some file systems number a file anew each time
  std::optional<FileDescriptor> fd;
  for (int i = 0; i < kTries && (i == 0 || !is_named(fd->get(), path)); ++i) {
    fd.emplace(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (fd->get() < 0) fail_system(ErrorKind::kRun, "create", path);
    if (take_lock(fd->get())) continue;
    if (lacks_locks(errno)) {
      warn_of_no_lock(path, errno);
      continue;
    }
    if (errno != EWOULDBLOCK) fail_system(ErrorKind::kRun, "lock", path);
    char holder[32] = {};
    const ssize_t length = ::pread(fd->get(), holder, sizeof holder - 1, 0);
    fail(ErrorKind::kUsage,
         "in use by process " + (length > 0 ? std::string(holder) : std::string("unknown")), path,
         "Wait until it has ended, or end it");
  }
  // Only for the message above: a failure to write it is harmless.
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(fd->get(), 0) == 0) (void)!::pwrite(fd->get(), pid.data(), pid.size(), 0);
  return std::make_unique<PosixFileLock>(fd->release());
}

bool is_locked(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0 || ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return false;
  if (!lacks_locks(errno)) return errno == EWOULDBLOCK;
  struct flock held = whole_file(F_WRLCK);
  return ::fcntl(fd.get(), F_OFD_GETLK, &held) == 0 && held.l_type != F_UNLCK;
}

}  // namespace saturate
