// An Env that fails, shortens and delays operations of another one, for tests and for `diagnose`.
#pragma once

#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/env.h"
#include "saturate/data/random.h"

namespace saturate {

enum class FileOp {
  kOpen,  // open_readable
  kRead,  // ReadableFile::read_at
  kList,
  kCreate,  // open_writable, open_appendable, lock
  kWrite,   // WritableFile::append
  kSync,
  kClose,
  kMakeDirectories,
  kRename,  // its path is the target
  kRemove,  // remove, remove_tree
  kSyncDirectory,
};

// The operations that a rule applies to.
struct FaultMatch {
  std::optional<FileOp> op;  // any if empty
  std::string path;          // substring of the path; "" matches every path
};

struct Fault {
  FaultMatch match;
  uint64_t skip = 0;            // matching operations that succeed first
  uint64_t times = UINT64_MAX;  // operations that fail after those
  int error = ENOSPC;           // errno for the failure's message
  uint64_t written = 0;         // kWrite: bytes that are written before the failure
};

// Safe for concurrent use, including rules. exists() and is_directory() pass through, as they
// cannot fail. Failures have Env's kinds: kData when reading, kRun when writing.
class FaultEnv : public Env {
 public:
  // `inner` must outlive this and every file opened through it.
  explicit FaultEnv(Env& inner) : inner_(inner) {}

  // Adds a rule. The first matching rule that is due fails the operation.
  void inject(const Fault& fault);
  // Delays each matching operation by a time drawn uniformly from [low_ns, high_ns], through this
  // Env's own sleep_ns(): on a fake clock it takes no real time.
  void delay(const FaultMatch& match, int64_t low_ns, int64_t high_ns);
  // Removes all rules; keeps counts.
  void clear();

  // Replaces the clock: now_ns() starts at `now_ns` and only sleep_ns() advances it.
  void use_fake_clock(int64_t now_ns = 0);

  // Number of matching operations so far, including failed ones.
  uint64_t count(const FaultMatch& match) const;

  std::unique_ptr<ReadableFile> open_readable(const std::string& path) override;
  std::unique_ptr<WritableFile> open_writable(const std::string& path) override;
  std::unique_ptr<WritableFile> open_appendable(const std::string& path) override;
  bool exists(const std::string& path) override { return inner_.exists(path); }
  bool is_directory(const std::string& path) override { return inner_.is_directory(path); }
  std::vector<FileInfo> list(const std::string& path) override;
  void make_directories(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void remove_tree(const std::string& path) override;
  uint64_t free_bytes(const std::string& folder) override { return inner_.free_bytes(folder); }
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> lock(const std::string& path) override;
  int64_t now_ns() override;
  void sleep_ns(int64_t duration) override;

 private:
  class FaultReadableFile;
  class FaultWritableFile;
  struct Rule {
    Fault fault;
    uint64_t seen = 0;
  };
  struct Delay {
    FaultMatch match;
    int64_t low_ns, high_ns;
  };
  struct Verdict {
    int error = 0;         // errno to fail with; 0: none
    uint64_t written = 0;  // as Fault's
    int64_t delay_ns = 0;
  };

  Verdict judge(FileOp op, const std::string& path);
  // Counts the operation, waits for its delays, and says whether a rule fails it.
  Verdict delayed(FileOp op, const std::string& path);
  // The same, and fails it.
  void before(FileOp op, const std::string& path);

  Env& inner_;
  mutable Mutex mutex_;
  std::vector<Rule> rules_ GUARDED_BY(mutex_);
  std::vector<Delay> delays_ GUARDED_BY(mutex_);
  std::map<std::pair<FileOp, std::string>, uint64_t> counts_ GUARDED_BY(mutex_);
  RandomStream random_ GUARDED_BY(mutex_){0, 0, 0, RandomUse::kSynthetic};
  std::optional<int64_t> fake_now_ns_ GUARDED_BY(mutex_);
};

}  // namespace saturate
