// An Env that fails, shortens and delays operations of another one.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/system_call.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
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
  kExamine,  // exists, is_directory; only for rules that name it
};

// The operations that a rule applies to.
struct FaultMatch {
  std::optional<FileOp> op;  // any but kExamine if empty
  std::string path;          // substring of the path; "" matches every path
};

struct Fault {
  FaultMatch match;
  uint64_t skip = 0;            // matching operations that succeed first
  uint64_t times = UINT64_MAX;  // operations that fail after those
  int error = ENOSPC;           // errno for the failure's message
  uint64_t written = 0;         // kWrite: bytes that are written before the failure
};

// Safe for concurrent use, including rules. Failures have Env's kinds.
class FaultEnv : public Env {
 public:
  // `inner` must outlive this and every file opened through it.
  explicit FaultEnv(Env& inner) : inner_(inner) {}

  // Adds a rule. The first matching rule that is due fails the operation.
  void inject(const Fault& fault) {
    MutexLock lock(mutex_);
    rules_.push_back({fault, 0});
  }
  // Delays each matching operation by a time drawn uniformly from [low_ns, high_ns], through this
  // Env's own sleep_ns(): on a fake clock it takes no real time.
  void delay(const FaultMatch& match, int64_t low_ns, int64_t high_ns) {
    MutexLock lock(mutex_);
    delays_.push_back({match, low_ns, high_ns});
  }
  // Removes all rules; keeps counts.
  void clear() {
    MutexLock lock(mutex_);
    rules_.clear();
    delays_.clear();
  }

  // Replaces the clock: now_ns() starts at `now_ns` and only sleep_ns() advances it.
  void use_fake_clock(int64_t now_ns = 0) {
    MutexLock lock(mutex_);
    fake_now_ns_ = now_ns;
  }

  // Number of matching operations so far, including failed ones.
  uint64_t count(const FaultMatch& match) const;

  std::unique_ptr<ReadableFile> open_readable(const std::string& path) override;
  std::unique_ptr<WritableFile> open_writable(const std::string& path) override;
  std::unique_ptr<WritableFile> open_appendable(const std::string& path) override;
  bool exists(const std::string& path) override {
    before(FileOp::kExamine, path);
    return inner_.exists(path);
  }
  bool is_directory(const std::string& path) override {
    before(FileOp::kExamine, path);
    return inner_.is_directory(path);
  }
  std::vector<FileInfo> list(const std::string& path) override {
    before(FileOp::kList, path);
    return inner_.list(path);
  }
  void make_directories(const std::string& path) override {
    before(FileOp::kMakeDirectories, path);
    inner_.make_directories(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before(FileOp::kRename, to);
    inner_.rename(from, to);
  }
  void remove(const std::string& path) override {
    before(FileOp::kRemove, path);
    inner_.remove(path);
  }
  void remove_tree(const std::string& path) override {
    before(FileOp::kRemove, path);
    inner_.remove_tree(path);
  }
  uint64_t free_bytes(const std::string& folder) override { return inner_.free_bytes(folder); }
  void sync_directory(const std::string& path) override {
    before(FileOp::kSyncDirectory, path);
    inner_.sync_directory(path);
  }
  std::unique_ptr<FileLock> lock(const std::string& path) override {
    before(FileOp::kCreate, path);
    return inner_.lock(path);
  }
  int64_t now_ns() override {
    MutexLock lock(mutex_);
    return fake_now_ns_ ? *fake_now_ns_ : inner_.now_ns();
  }
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

  // In FileOp's order.
  static constexpr const char* kVerbs[] = {"open",   "read",   "list folder", "create",
                                           "write",  "sync",   "close",       "create folder",
                                           "rename", "remove", "sync folder", "examine"};
  static_assert(std::size(kVerbs) == size_t(FileOp::kExamine) + 1);

  [[noreturn]] static void fail_injected(FileOp op, const std::string& path, int error) {
    const bool reading = op == FileOp::kOpen || op == FileOp::kRead || op == FileOp::kList;
    fail(reading ? kind_of_failed_read(error) : ErrorKind::kRun,
         std::string("cannot ") + kVerbs[size_t(op)] + ": " + std::strerror(error), path,
         "This failure was injected by a FaultEnv");
  }

  static bool matches(const FaultMatch& match, FileOp op, const std::string& path) {
    return (match.op ? *match.op == op : op != FileOp::kExamine) &&
           path.find(match.path) != std::string::npos;
  }

  Verdict judge(FileOp op, const std::string& path);
  // Counts the operation, waits for its delays, and says whether a rule fails it.
  Verdict delayed(FileOp op, const std::string& path) {
    const Verdict verdict = judge(op, path);
    if (verdict.delay_ns > 0) sleep_ns(verdict.delay_ns);
    return verdict;
  }
  // The same, and fails it.
  void before(FileOp op, const std::string& path) {
    if (const Verdict verdict = delayed(op, path); verdict.error != 0)
      fail_injected(op, path, verdict.error);
  }

  Env& inner_;
  mutable Mutex mutex_;
  std::vector<Rule> rules_ GUARDED_BY(mutex_);
  std::vector<Delay> delays_ GUARDED_BY(mutex_);
  std::map<std::pair<FileOp, std::string>, uint64_t> counts_ GUARDED_BY(mutex_);
  RandomStream random_ GUARDED_BY(mutex_){0, 0, 0, RandomUse::kSynthetic};
  std::optional<int64_t> fake_now_ns_ GUARDED_BY(mutex_);
};

inline uint64_t FaultEnv::count(const FaultMatch& match) const {
  MutexLock lock(mutex_);
  uint64_t total = 0;
  for (const auto& [key, count] : counts_)
    if (matches(match, key.first, key.second)) total += count;
  return total;
}

inline FaultEnv::Verdict FaultEnv::judge(FileOp op, const std::string& path) {
  MutexLock lock(mutex_);
  Verdict verdict;
  ++counts_[{op, path}];
  for (const auto& delay : delays_) {
    if (!matches(delay.match, op, path)) continue;
    const uint64_t range = uint64_t(delay.high_ns - delay.low_ns) + 1;
    verdict.delay_ns += delay.low_ns + int64_t(random_.below(range));
  }
  for (auto& rule : rules_) {
    if (!matches(rule.fault.match, op, path)) continue;
    const uint64_t seen = rule.seen++;
    const bool due = seen >= rule.fault.skip && seen - rule.fault.skip < rule.fault.times;
    if (!due || verdict.error != 0) continue;
    verdict.error = rule.fault.error;
    verdict.written = rule.fault.written;
  }
  return verdict;
}

class FaultEnv::FaultReadableFile : public ReadableFile {
 public:
  FaultReadableFile(FaultEnv& env, std::unique_ptr<ReadableFile> file, std::string path)
      : env_(env), file_(std::move(file)), path_(std::move(path)) {}
  uint64_t size() const override { return file_->size(); }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    env_.before(FileOp::kRead, path_);
    file_->read_at(offset, out);
  }
  void advise(ReadAdvice advice, uint64_t offset, uint64_t length) const override {
    file_->advise(advice, offset, length);
  }

 private:
  FaultEnv& env_;
  std::unique_ptr<ReadableFile> file_;
  std::string path_;
};

class FaultEnv::FaultWritableFile : public WritableFile {
 public:
  FaultWritableFile(FaultEnv& env, std::unique_ptr<WritableFile> file, std::string path)
      : env_(env), file_(std::move(file)), path_(std::move(path)) {}
  void append(std::span<const std::byte> bytes) override {
    const Verdict verdict = env_.delayed(FileOp::kWrite, path_);
    if (verdict.error == 0) return file_->append(bytes);
    file_->append(bytes.first(std::min(bytes.size(), size_t(verdict.written))));
    fail_injected(FileOp::kWrite, path_, verdict.error);
  }
  void bypass_cache() override { file_->bypass_cache(); }
  void sync() override {
    env_.before(FileOp::kSync, path_);
    file_->sync();
  }
  void close() override {
    env_.before(FileOp::kClose, path_);
    file_->close();
  }

 private:
  FaultEnv& env_;
  std::unique_ptr<WritableFile> file_;
  std::string path_;
};

inline std::unique_ptr<ReadableFile> FaultEnv::open_readable(const std::string& path) {
  before(FileOp::kOpen, path);
  return std::make_unique<FaultReadableFile>(*this, inner_.open_readable(path), path);
}

inline std::unique_ptr<WritableFile> FaultEnv::open_writable(const std::string& path) {
  before(FileOp::kCreate, path);
  return std::make_unique<FaultWritableFile>(*this, inner_.open_writable(path), path);
}

inline std::unique_ptr<WritableFile> FaultEnv::open_appendable(const std::string& path) {
  before(FileOp::kCreate, path);
  return std::make_unique<FaultWritableFile>(*this, inner_.open_appendable(path), path);
}

inline void FaultEnv::sleep_ns(int64_t duration) {
  {
    MutexLock lock(mutex_);
    if (fake_now_ns_) {
      *fake_now_ns_ += duration;
      return;
    }
  }
  inner_.sleep_ns(duration);
}

}  // namespace saturate
