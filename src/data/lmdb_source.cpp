// lmdb:PATH: an LMDB written by `saturate data pack`, docs/lmdb_format.md. An LMDB read transaction
// stays open as long as the source, so that no writer reuses the pages of its commit: the source
// shows the last commit before it was opened, and neither blocks writers nor is blocked. The pages
// themselves are read by LmdbTree through Env, from any thread: LMDB's map is not used.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/system_call.h"
#include "data/bytes.h"
#include "data/lmdb_format.h"
#include "data/lmdb_tree.h"
#include "data/path_list.h"
#include "data/shard_format.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kFetchAgain =
    "It is truncated or damaged: fetch it again, or create it again with saturate data pack";

// LMDB's own codes are negative, the system's positive.
void check(int result, const std::string& path) {
  if (result == MDB_SUCCESS) return;
  if (result > 0)  // a damaged size may be more memory than there is
    fail_system(result == ENOMEM ? ErrorKind::kData : kind_of_failed_read(result), "open LMDB",
                path, result);
  fail(ErrorKind::kData, std::string("cannot open LMDB: ") + mdb_strerror(result), path,
       kFetchAgain);
}

// Whether there is no lock file and none can be created, so that there is no writer either, or the
// file system has no locks.
bool has_no_locks(int result) {
  constexpr int kReasons[] = {EACCES, ENOSYS, ENOLCK, EOPNOTSUPP, ENODEV};
  return std::ranges::count(kReasons, result) > 0;
}

using SharedEnv = std::shared_ptr<MDB_env>;

SharedEnv open_env(const std::string& path, unsigned flags) {
  MDB_env* created = nullptr;
  check(mdb_env_create(&created), path);
  SharedEnv env(created, LmdbClose());
  const unsigned always = MDB_RDONLY | MDB_NOTLS | flags;
  int result = mdb_env_open(created, path.c_str(), always, 0644);
  if (has_no_locks(result)) {
    mdb_env_create(&created);
    env.reset(created, LmdbClose());
    result = mdb_env_open(created, path.c_str(), always | MDB_NOLOCK, 0644);
  }
  check(result, path);
  return env;
}

// A process must not open the same LMDB twice: closing one would release the locks of both.
SharedEnv share_env(const std::string& path, const std::string& data_file, unsigned flags) {
  static Mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<MDB_env>> opened GUARDED_BY(mutex);
  struct stat info {};
  if (::stat(data_file.c_str(), &info) != 0) check(errno, path);
  const MutexLock lock(mutex);
  std::weak_ptr<MDB_env>& known = opened[{info.st_dev, info.st_ino}];
  SharedEnv env = known.lock();
  if (!env) known = env = open_env(path, flags);
  return env;
}

class LmdbSource : public IndexedSource {
 public:
  LmdbSource(Env& env, std::string path)
      : path_(std::move(path)), data_file_(env.is_directory(path_) ? path_ + "/data.mdb" : path_) {
    const auto open_tree = [&] { tree_.emplace(env.open_readable(data_file_), data_file_); };
    open_tree();  // before LMDB maps the file, as it trusts its contents
    env_ = share_env(path_, data_file_, data_file_ == path_ ? MDB_NOSUBDIR : 0);
    MDB_txn* begun = nullptr;
    check(mdb_txn_begin(env_.get(), nullptr, MDB_RDONLY, &begun), path_);
    txn_.reset(begun);
    select_commit(open_tree);
    find_records(read_meta());
  }

  size_t size() const override { return records_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  int64_t label(size_t index) const override {
    std::array<std::byte, sizeof(uint32_t)> bytes;  // the record's first field
    if (records_[index].size < bytes.size()) return -1;
    tree_->file().read_at(records_[index].offset, bytes);
    const auto own = ByteReader(bytes).number<uint32_t>();
    return own < labels_.size() ? labels_[own] : -1;
  }

  void read(size_t index, Sample& out) const override {
    out.name = path_ + ":" + lmdb_key(index);
    read_value(records_[index], out.bytes);
    const LmdbRecord record = parse_record(out.bytes, out.name);
    out.name.assign(path_).append(":").append(record.name);
    const std::string problem =
        check_payload(PayloadKind::kRaw, record.kind, record.channels, record.width, record.height,
                      record.bytes.size(), record.label, classes_.size());
    if (!problem.empty()) fail(ErrorKind::kData, "sample " + problem, out.name, kFetchAgain);
    out.label = labels_[record.label];
    set_encoding(out, record.kind, record.channels, record.width, record.height);
    if (checksum_of(record.bytes) != record.crc)
      fail(ErrorKind::kData, "sample is damaged: wrong checksum", out.name, kFetchAgain);
    const size_t head = out.bytes.size() - record.bytes.size();
    out.bytes.erase(out.bytes.begin(), out.bytes.begin() + ptrdiff_t(head));
  }

 private:
  void read_value(const LmdbValue& value, std::vector<std::byte>& out) const {
    out.resize(size_t(value.size));
    tree_->file().read_at(value.offset, out);
  }

  // Selects the transaction's commit. The commit may have grown the file, and a writer may be two
  // commits ahead by now; but not repeatedly, in so short a time.
  template <class Open>
  void select_commit(const Open& open_tree) {
    for (int tries = 0; tries < 100; ++tries) {
      open_tree();
      if (tree_->select(mdb_txn_id(txn_.get()))) return;
      mdb_txn_reset(txn_.get());
      check(mdb_txn_renew(txn_.get()), path_);
    }
    fail(ErrorKind::kData, "LMDB does not hold the commit that its lock file names", path_,
         "Open it when nothing writes it, or remove lock.mdb if nothing does");
  }

  // Returns the number of samples.
  uint64_t read_meta() {
    std::vector<std::byte> bytes;
    const bool found = tree_->visit_last([&](std::string_view key, const LmdbValue& value) {
      if (key == kLmdbMetaKey) read_value(value, bytes);
    });
    if (!found || bytes.empty())
      fail(ErrorKind::kData, "LMDB was not written by saturate: it has no record \"saturate\"",
           path_, "Create it with saturate data pack SOURCE --out lmdb:FOLDER");
    const LmdbMeta meta = parse_meta(bytes, path_);
    classes_ = meta.classes;
    labels_ = sort_classes(classes_);
    return meta.samples;
  }

  void find_records(uint64_t samples) {
    tree_->walk([&](std::string_view key, const LmdbValue& value) {
      if (key == kLmdbMetaKey) return;
      if (key != lmdb_key(records_.size()))
        fail(ErrorKind::kData, "LMDB has no record " + lmdb_key(records_.size()), path_,
             kFetchAgain);
      records_.push_back(value);
    });
    if (records_.size() != samples || samples == 0)
      fail(ErrorKind::kData,
           "LMDB has " + std::to_string(records_.size()) + " records where " +
               std::to_string(samples) + " belong",
           path_, kFetchAgain);
  }

  const std::string path_, data_file_;
  std::optional<LmdbTree> tree_;
  SharedEnv env_;
  LmdbTxnPtr txn_;  // protects the pages that records_ point to
  std::vector<LmdbValue> records_;
  std::vector<std::string> classes_;
  std::vector<int64_t> labels_;  // by the file's own label
};

}  // namespace

std::unique_ptr<Dataset> open_lmdb(Env& env, const std::string& rest) {
  return std::make_unique<LmdbSource>(env, take_folder(rest, "lmdb"));
}

}  // namespace saturate
