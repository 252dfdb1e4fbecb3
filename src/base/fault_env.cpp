#include "base/fault_env.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "saturate/data/error.h"

namespace saturate {
namespace {

// In FileOp's order.
constexpr const char* kVerbs[] = {"open",   "read",   "list folder", "create",
                                  "write",  "sync",   "close",       "create folder",
                                  "rename", "remove", "sync folder"};
static_assert(std::size(kVerbs) == size_t(FileOp::kSyncDirectory) + 1);

[[noreturn]] void fail_injected(FileOp op, const std::string& path, int error) {
  const bool reading = op == FileOp::kOpen || op == FileOp::kRead || op == FileOp::kList;
  fail(reading ? ErrorKind::kData : ErrorKind::kRun,
       std::string("cannot ") + kVerbs[size_t(op)] + ": " + std::strerror(error), path,
       "This failure was injected by a FaultEnv");
}

bool matches(const FaultMatch& match, FileOp op, const std::string& path) {
  return (!match.op || *match.op == op) && path.find(match.path) != std::string::npos;
}

}  // namespace

void FaultEnv::inject(const Fault& fault) {
  MutexLock lock(mutex_);
  rules_.push_back({fault, 0});
}

void FaultEnv::delay(const FaultMatch& match, int64_t low_ns, int64_t high_ns) {
  MutexLock lock(mutex_);
  delays_.push_back({match, low_ns, high_ns});
}

void FaultEnv::clear() {
  MutexLock lock(mutex_);
  rules_.clear();
  delays_.clear();
}

void FaultEnv::use_fake_clock(int64_t now_ns) {
  MutexLock lock(mutex_);
  fake_now_ns_ = now_ns;
}

uint64_t FaultEnv::count(const FaultMatch& match) const {
  MutexLock lock(mutex_);
  uint64_t total = 0;
  for (const auto& [key, count] : counts_)
    if (matches(match, key.first, key.second)) total += count;
  return total;
}

FaultEnv::Verdict FaultEnv::judge(FileOp op, const std::string& path) {
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

FaultEnv::Verdict FaultEnv::delayed(FileOp op, const std::string& path) {
  const Verdict verdict = judge(op, path);
  if (verdict.delay_ns > 0) sleep_ns(verdict.delay_ns);
  return verdict;
}

void FaultEnv::before(FileOp op, const std::string& path) {
  if (const Verdict verdict = delayed(op, path); verdict.error != 0)
    fail_injected(op, path, verdict.error);
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

std::unique_ptr<ReadableFile> FaultEnv::open_readable(const std::string& path) {
  before(FileOp::kOpen, path);
  return std::make_unique<FaultReadableFile>(*this, inner_.open_readable(path), path);
}

std::unique_ptr<WritableFile> FaultEnv::open_writable(const std::string& path) {
  before(FileOp::kCreate, path);
  return std::make_unique<FaultWritableFile>(*this, inner_.open_writable(path), path);
}

std::unique_ptr<WritableFile> FaultEnv::open_appendable(const std::string& path) {
  before(FileOp::kCreate, path);
  return std::make_unique<FaultWritableFile>(*this, inner_.open_appendable(path), path);
}

std::vector<FileInfo> FaultEnv::list(const std::string& path) {
  before(FileOp::kList, path);
  return inner_.list(path);
}

void FaultEnv::make_directories(const std::string& path) {
  before(FileOp::kMakeDirectories, path);
  inner_.make_directories(path);
}

void FaultEnv::rename(const std::string& from, const std::string& to) {
  before(FileOp::kRename, to);
  inner_.rename(from, to);
}

void FaultEnv::remove(const std::string& path) {
  before(FileOp::kRemove, path);
  inner_.remove(path);
}

void FaultEnv::remove_tree(const std::string& path) {
  before(FileOp::kRemove, path);
  inner_.remove_tree(path);
}

void FaultEnv::sync_directory(const std::string& path) {
  before(FileOp::kSyncDirectory, path);
  inner_.sync_directory(path);
}

std::unique_ptr<FileLock> FaultEnv::lock(const std::string& path) {
  before(FileOp::kCreate, path);
  return inner_.lock(path);
}

int64_t FaultEnv::now_ns() {
  MutexLock lock(mutex_);
  return fake_now_ns_ ? *fake_now_ns_ : inner_.now_ns();
}

void FaultEnv::sleep_ns(int64_t duration) {
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
