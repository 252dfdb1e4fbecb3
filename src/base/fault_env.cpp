#include "base/fault_env.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "saturate/data/error.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

const char* verb(FileOp op) {
  switch (op) {
    case FileOp::kOpen:
      return "open";
    case FileOp::kRead:
      return "read";
    case FileOp::kList:
      return "list folder";
    case FileOp::kCreate:
      return "create";
    case FileOp::kWrite:
      return "write";
    case FileOp::kSync:
      return "sync";
    case FileOp::kClose:
      return "close";
    case FileOp::kMakeDirectories:
      return "create folder";
    case FileOp::kRename:
      return "rename";
    case FileOp::kRemove:
      return "remove";
    case FileOp::kSyncDirectory:
      return "sync folder";
  }
  return "use";
}

[[noreturn]] void fail_injected(FileOp op, const std::string& path, int error) {
  const bool reading = op == FileOp::kOpen || op == FileOp::kRead || op == FileOp::kList;
  fail(reading ? ErrorKind::kData : ErrorKind::kRun,
       std::string("cannot ") + verb(op) + ": " + std::strerror(error), path,
       "This failure was injected by a FaultEnv");
}

bool matches(const FaultMatch& match, FileOp op, const std::string& path) {
  return (!match.op || *match.op == op) && path.find(match.path) != std::string::npos;
}

}  // namespace

struct FaultEnv::State {
  struct Rule {
    Fault fault;
    uint64_t seen = 0;
  };
  struct Delay {
    FaultMatch match;
    int64_t low_ns, high_ns;
  };
  std::mutex mutex;
  // All below guarded by mutex.
  std::vector<Rule> rules;
  std::vector<Delay> delays;
  std::map<std::pair<FileOp, std::string>, uint64_t> counts;
  RandomStream random{0, 0, 0, RandomUse::kSynthetic};
  std::optional<int64_t> fake_now_ns;
};

FaultEnv::FaultEnv(Env& inner) : inner_(inner), state_(std::make_unique<State>()) {}
FaultEnv::~FaultEnv() = default;

void FaultEnv::inject(const Fault& fault) {
  std::lock_guard lock(state_->mutex);
  state_->rules.push_back({fault, 0});
}

void FaultEnv::delay(const FaultMatch& match, int64_t low_ns, int64_t high_ns) {
  std::lock_guard lock(state_->mutex);
  state_->delays.push_back({match, low_ns, high_ns});
}

void FaultEnv::clear() {
  std::lock_guard lock(state_->mutex);
  state_->rules.clear();
  state_->delays.clear();
}

void FaultEnv::use_fake_clock(int64_t now_ns) {
  std::lock_guard lock(state_->mutex);
  state_->fake_now_ns = now_ns;
}

uint64_t FaultEnv::count(const FaultMatch& match) const {
  std::lock_guard lock(state_->mutex);
  uint64_t total = 0;
  for (const auto& [key, count] : state_->counts)
    if (matches(match, key.first, key.second)) total += count;
  return total;
}

FaultEnv::Verdict FaultEnv::judge(FileOp op, const std::string& path) {
  std::lock_guard lock(state_->mutex);
  Verdict verdict;
  ++state_->counts[{op, path}];
  for (const auto& delay : state_->delays) {
    if (!matches(delay.match, op, path)) continue;
    const uint64_t range = uint64_t(delay.high_ns - delay.low_ns) + 1;
    verdict.delay_ns += delay.low_ns + int64_t(state_->random.below(range));
  }
  for (auto& rule : state_->rules) {
    if (!matches(rule.fault.match, op, path)) continue;
    const uint64_t seen = rule.seen++;
    const bool due = seen >= rule.fault.skip && seen - rule.fault.skip < rule.fault.times;
    if (!due || verdict.error != 0) continue;
    verdict.error = rule.fault.error;
    verdict.written = rule.fault.written;
  }
  return verdict;
}

void FaultEnv::before(FileOp op, const std::string& path) {
  const Verdict verdict = judge(op, path);
  if (verdict.delay_ns > 0) sleep_ns(verdict.delay_ns);
  if (verdict.error != 0) fail_injected(op, path, verdict.error);
}

FaultEnv::WriteVerdict FaultEnv::before_write(const std::string& path, uint64_t bytes) {
  const Verdict verdict = judge(FileOp::kWrite, path);
  if (verdict.delay_ns > 0) sleep_ns(verdict.delay_ns);
  return {verdict.error == 0 ? bytes : std::min(bytes, verdict.written), verdict.error};
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
    const WriteVerdict verdict = env_.before_write(path_, bytes.size());
    file_->append(bytes.first(size_t(verdict.bytes)));
    if (verdict.error != 0) fail_injected(FileOp::kWrite, path_, verdict.error);
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

bool FaultEnv::exists(const std::string& path) {
  return inner_.exists(path);
}

bool FaultEnv::is_directory(const std::string& path) {
  return inner_.is_directory(path);
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

uint64_t FaultEnv::free_bytes(const std::string& folder) {
  return inner_.free_bytes(folder);
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
  std::lock_guard lock(state_->mutex);
  return state_->fake_now_ns ? *state_->fake_now_ns : inner_.now_ns();
}

void FaultEnv::sleep_ns(int64_t duration) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->fake_now_ns) {
      *state_->fake_now_ns += duration;
      return;
    }
  }
  inner_.sleep_ns(duration);
}

}  // namespace saturate
