#include <cerrno>
#include <string>

#include "base/files.h"
#include "data/atomic_file.h"
#include "data/bytes.h"
#include "data/lmdb_format.h"
#include "data/sample_writer.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kBatchBytes = 16 << 20;  // per transaction

// Writes FOLDER/data.mdb under a temporary name. LMDB does its own I/O; the file is synced and
// renamed through Env.
class LmdbWriter : public SampleWriter {
 public:
  LmdbWriter(Env& env, const std::string& folder, const std::vector<std::string>& classes)
      : env_(env),
        classes_(classes),
        path_(folder + "/data.mdb"),
        temporary_(claim_temporary(env, path_)) {
    discard(env_, temporary_);  // of an earlier process with this PID
    MDB_env* lmdb = nullptr;
    check(mdb_env_create(&lmdb), "create");
    lmdb_.reset(lmdb);
    try {
      check(mdb_env_open(lmdb, temporary_.c_str(), MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0644),
            "create");
    } catch (...) {
      lmdb_.reset();
      discard(env_, temporary_);
      throw;
    }
  }
  ~LmdbWriter() override {
    lmdb_.reset();
    if (!finished_) discard(env_, temporary_);
  }

  void append(const Sample& sample) override {
    pending_.push_back(encode_record(sample));
    pending_bytes_ += pending_.back().size();
    if (pending_bytes_ >= kBatchBytes) write_batch(false);
  }

  void finish() override {
    write_batch(true);
    check(mdb_env_sync(lmdb_.get(), 1), "sync");
    lmdb_.reset();
    env_.rename(temporary_, path_);
    env_.sync_directory(parent_folder(path_));
    finished_ = true;
  }

 private:
  // Writes all pending records, and with the last batch the dataset's record.
  void write_batch(bool last) {
    grow_map();
    MDB_txn* begun = nullptr;
    check(mdb_txn_begin(lmdb_.get(), nullptr, 0, &begun), "write");
    LmdbTxnPtr txn(begun);
    MDB_dbi table;
    check(mdb_dbi_open(begun, nullptr, 0, &table), "write");
    for (auto& record : pending_) put(begun, table, lmdb_key(written_++), record);
    if (last) {
      auto meta = encode_meta({written_, classes_});
      put(begun, table, std::string(kLmdbMetaKey), meta);
    }
    check(mdb_txn_commit(txn.release()), "write");
    pending_.clear();
    pending_bytes_ = 0;
  }

  // Keys come in order: MDB_APPEND fills pages sequentially.
  void put(MDB_txn* txn, MDB_dbi table, std::string key, std::vector<std::byte>& bytes) {
    MDB_val name{key.size(), key.data()}, value{bytes.size(), bytes.data()};
    check(mdb_put(txn, table, &name, &value, MDB_APPEND), "write");
  }

  // The map must hold all data written, and may grow between transactions. A record takes at most
  // two pages more than its bytes, in the tree and in its own last page.
  void grow_map() {
    size_t pages = 1024;
    for (const auto& record : pending_) pages += record.size() / kPage + 4;
    for (const std::string& name : classes_) pages += name.size() / kPage + 1;
    map_bytes_ += pages * kPage;
    check(mdb_env_set_mapsize(lmdb_.get(), map_bytes_), "grow");
  }

  void check(int result, const char* action) const {
    if (result == MDB_SUCCESS) return;
    fail(ErrorKind::kRun, std::string("cannot ") + action + " LMDB: " + mdb_strerror(result), path_,
         result == ENOSPC ? "Free some space, or choose another folder with --out"
                          : "Check the file system, or write to shard:FILE instead");
  }

  static constexpr size_t kPage = 4096;
  Env& env_;
  const std::vector<std::string>& classes_;
  const std::string path_, temporary_;
  LmdbEnvPtr lmdb_;
  std::vector<std::vector<std::byte>> pending_;
  size_t pending_bytes_ = 0, map_bytes_ = 0;
  uint64_t written_ = 0;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<SampleWriter> write_lmdb(Env& env, const std::string& path,
                                         const std::vector<std::string>& classes) {
  return std::make_unique<LmdbWriter>(env, path, classes);
}

}  // namespace saturate
