// The lock is not one of Env: it is waited for, and its file may be deleted.
#include "store/cache_space.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint64_t kSpaceMagic = 0x3145434150535453;  // "STSPACE1"
constexpr int64_t kMostWait = 30'000'000'000;         // ns
constexpr int64_t kWaitStep = 100'000;                // ns

struct SpaceRecord {
  uint64_t magic, used, is_changing;
};

[[noreturn]] void fail_space(const std::string& path, const std::string& reason) {
  fail(ErrorKind::kRun, "cannot lock the cache: " + reason, path,
       "Use a folder on a local disk as data.cache_dir");
}

}  // namespace

CacheSpace::CacheSpace(Env& env, const std::string& folder) : path_(folder + "/.space") {
  const int64_t until = env.now_ns() + kMostWait;
  try {
    while (!is_current()) {  // until the file that is locked is still there
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
      env.make_directories(folder);
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (fd_ < 0 && (errno != ENOENT || env.now_ns() > until))
        fail_space(path_, std::strerror(errno));
      if (fd_ >= 0) take(env, until);
    }
    SpaceRecord record{};
    is_known_ = ::pread(fd_, &record, sizeof record, 0) == ssize_t(sizeof record) &&
                record.magic == kSpaceMagic && !record.is_changing;
    used = record.used;
    if (!store(true)) fail_space(path_, std::strerror(errno));
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

// A process that forks meanwhile has a copy of the descriptor, so closing it is not enough.
CacheSpace::~CacheSpace() {
  ::flock(fd_, LOCK_UN);
  ::close(fd_);
}

void CacheSpace::take(Env& env, int64_t until_ns) {
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_space(path_, std::strerror(errno));
    if (env.now_ns() > until_ns) fail_space(path_, "another process has held it for 30 s");
    env.sleep_ns(kWaitStep);
  }
}

bool CacheSpace::is_current() const {
  struct stat own, there;
  return fd_ >= 0 && ::fstat(fd_, &own) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         own.st_ino == there.st_ino && own.st_dev == there.st_dev;
}

bool CacheSpace::store(bool is_changing) {
  const SpaceRecord record{kSpaceMagic, used, is_changing};
  return ::pwrite(fd_, &record, sizeof record, 0) == ssize_t(sizeof record);
}

void CacheSpace::commit() {
  store(false);  // if it fails, the next process counts
}

}  // namespace saturate
