// The lock is not one of Env: it is waited for, and its file may be deleted.
#include "store/cache_space.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cancel.h"
#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint64_t kSpaceMagic = 0x3145434150535453;  // "STSPACE1"
constexpr int64_t kMostWait = 30'000'000'000;         // ns
constexpr int64_t kEndingWait = 1'000'000'000;        // ns, for processes that end together
constexpr int64_t kQuietWait = 3'000'000'000;         // ns
constexpr int64_t kWaitStep = 100'000;                // ns

struct SpaceRecord {
  uint64_t magic, used, changes;
};
constexpr off_t kWantedAt = sizeof(SpaceRecord);  // a byte: 1 if a process waits

[[noreturn]] void fail_space(
    const std::string& path, const std::string& reason,
    const std::string& remedy = "Use a folder on a local disk as data.cache_dir") {
  fail(ErrorKind::kRun, "cannot lock the cache: " + reason, path, remedy);
}

[[noreturn]] void fail_held(const std::string& path) {
  fail_space(path, "another process holds the lock",
             "Wait until it has ended, or use another data.cache_dir");
}

// Whoever may write the folder may write the file, whatever the umask of its first user.
int open_shared(const std::string& path, const std::string& folder) {
  const int there = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (there >= 0 || errno != ENOENT) return there;
  const int made = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  struct stat info;
  if (made >= 0 && ::stat(folder.c_str(), &info) == 0)
    static_cast<void>(!::fchmod(made, (info.st_mode & 0666) | 0600));
  return made;
}

}  // namespace

CacheSpace::CacheSpace(Env& env, const std::string& folder) : env_(env), path_(folder + "/.space") {
  const int64_t begin = env_.now_ns();
  int64_t until = begin + kMostWait;
  try {
    while (!is_current()) {  // until the file that is locked is still there
      const int64_t now = env_.now_ns();
      if (now > until || (now > begin + kEndingWait && is_cancelled()))
        fail_space(path_, "other processes keep replacing it");
      if (fd_ >= 0) {
        ::close(std::exchange(fd_, -1));
        env_.sleep_ns(kWaitStep);
      }
      env_.make_directories(folder);
      fd_ = open_shared(path_, folder);
      if (fd_ < 0 && errno != ENOENT) fail_space(path_, std::strerror(errno));
      if (fd_ >= 0) take(until);
    }
    SpaceRecord record{};
    is_known_ = ::pread(fd_, &record, sizeof record, 0) == ssize_t(sizeof record) &&
                record.magic == kSpaceMagic && record.changes == 0;
    used = record.used;
    if (!store(changes_)) fail_space(path_, std::strerror(errno));
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

// Waiting processes ask now and then, and would rarely find the lock of a busy one free. A process
// that forks meanwhile has a copy of the descriptor, so closing it is not enough.
CacheSpace::~CacheSpace() {
  char wanted = 0;
  if (::pread(fd_, &wanted, 1, kWantedAt) == 1 && wanted) set_wanted(0);
  ::flock(fd_, LOCK_UN);
  ::close(fd_);
  if (wanted) env_.sleep_ns(2 * kWaitStep);
}

void CacheSpace::set_wanted(char wanted) {
  static_cast<void>(!::pwrite(fd_, &wanted, 1, kWantedAt));  // else waiting takes longer
}

void CacheSpace::take(int64_t& until_ns) {
  const int64_t begin = env_.now_ns();
  static std::atomic<bool> told{false};
  uint64_t seen = 1;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_space(path_, std::strerror(errno));
    const int64_t now = env_.now_ns();
    SpaceRecord record{};
    if (::pread(fd_, &record, sizeof record, 0) == ssize_t(sizeof record) && record.changes > 1 &&
        std::exchange(seen, record.changes) != record.changes)
      until_ns = now + kMostWait;  // its holder makes progress
    if (now > until_ns || (now > begin + kEndingWait && is_cancelled())) fail_held(path_);
    if (now > begin + kQuietWait && !told.exchange(true))
      print_warning(path_ + ": waiting for another process, which has locked the cache");
    set_wanted(1);
    env_.sleep_ns(kWaitStep);
  }
}

bool CacheSpace::is_current() const {
  struct stat own, there;
  return fd_ >= 0 && ::fstat(fd_, &own) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         own.st_ino == there.st_ino && own.st_dev == there.st_dev;
}

bool CacheSpace::store(uint64_t changes) {
  const SpaceRecord record{kSpaceMagic, used, changes};
  return ::pwrite(fd_, &record, sizeof record, 0) == ssize_t(sizeof record);
}

void CacheSpace::note_progress() {
  store(++changes_);
}

void CacheSpace::commit() {
  store(0);  // if it fails, the next process counts
}

}  // namespace saturate
