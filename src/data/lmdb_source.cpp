// lmdb:PATH: an LMDB written by `saturate data pack`, docs/lmdb_format.md. One read transaction
// lasts as long as the source: it shows the last commit before it was opened, whatever is written
// meanwhile, and neither waits for a writer nor makes one wait. Opening walks the keys and notes
// where each record lies in LMDB's map, so that reading is a copy out of memory, from any thread.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "data/bytes.h"
#include "data/lmdb_format.h"
#include "data/shard_format.h"
#include "data/sources.h"
#include "saturate/error.h"

namespace saturate {
namespace {

constexpr uint32_t kMagic = 0xBEEFC0DE;
constexpr uint32_t kDataVersion = 1;
constexpr size_t kMetaBytes = 152;
constexpr const char* kFetchAgain =
    "It is truncated or damaged: fetch it again, or create it again with saturate data pack";

// One of the two meta pages at an LMDB's start: the fields that tell how far its pages reach.
struct MetaPage {
  uint32_t magic, version, page_bytes;
  uint64_t last_page, transaction;
};

MetaPage read_meta_page(const ReadableFile& file, uint64_t offset) {
  std::vector<std::byte> bytes(kMetaBytes);
  file.read_at(offset, bytes);
  ByteReader reader(bytes);
  MetaPage page{};
  reader.skip(16);  // the page's header
  page.magic = reader.number<uint32_t>();
  page.version = reader.number<uint32_t>();
  reader.skip(16);  // address and size of the map
  page.page_bytes = reader.number<uint32_t>();
  reader.skip(2 * 48 - 4);  // the rest of the two root records
  page.last_page = reader.number<uint64_t>();
  page.transaction = reader.number<uint64_t>();
  return page;
}

// LMDB reads through a memory map: pages beyond the file's end would kill the process.
void check_whole(Env& env, const std::string& path) {
  const auto file = env.open_readable(path);
  const bool has_meta = file->size() >= kMetaBytes;
  MetaPage meta = has_meta ? read_meta_page(*file, 0) : MetaPage{};
  const uint64_t page = meta.page_bytes;
  if (meta.magic != kMagic || meta.version != kDataVersion || page < 512 || page > (1 << 16))
    fail(ErrorKind::kData, "not an LMDB", path,
         "Check the path; saturate data pack SOURCE --out lmdb:FOLDER writes one");
  if (file->size() < 2 * page) fail(ErrorKind::kData, "LMDB is truncated", path, kFetchAgain);
  const MetaPage second = read_meta_page(*file, page);
  if (second.magic == kMagic && second.transaction > meta.transaction) meta = second;
  if (meta.last_page >= file->size() / page)
    fail(ErrorKind::kData,
         "LMDB is truncated: it has " + std::to_string(file->size() / page) + " pages of " +
             std::to_string(meta.last_page + 1),
         path, kFetchAgain);
}

void check(int result, const std::string& path) {
  if (result == MDB_SUCCESS) return;
  fail(ErrorKind::kData, std::string("cannot open LMDB: ") + mdb_strerror(result), path,
       result == EACCES ? "Check its permissions" : kFetchAgain);
}

using SharedEnv = std::shared_ptr<MDB_env>;

SharedEnv open_env(const std::string& path, unsigned flags) {
  MDB_env* created = nullptr;
  check(mdb_env_create(&created), path);
  SharedEnv env(created, LmdbClose());
  const unsigned always = MDB_RDONLY | MDB_NOTLS | flags;
  int result = mdb_env_open(created, path.c_str(), always, 0644);
  if (result == EACCES) {  // no lock file, and none can be made: then nobody can be writing either
    mdb_env_create(&created);
    env.reset(created, LmdbClose());
    result = mdb_env_open(created, path.c_str(), always | MDB_NOLOCK, 0644);
  }
  check(result, path);
  return env;
}

// A process must not open the same LMDB twice at a time: closing one would drop the locks of both.
SharedEnv share_env(const std::string& path, const std::string& data_file, unsigned flags) {
  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<MDB_env>> opened;  // guarded by mutex
  struct stat info {};
  if (::stat(data_file.c_str(), &info) != 0) check(errno, path);
  std::lock_guard lock(mutex);
  std::weak_ptr<MDB_env>& known = opened[{info.st_dev, info.st_ino}];
  SharedEnv env = known.lock();
  if (!env) known = env = open_env(path, flags);
  return env;
}

class LmdbSource : public Dataset {
 public:
  LmdbSource(Env& env, std::string path) : path_(std::move(path)) {
    const bool folder = env.is_directory(path_);
    const std::string data_file = folder ? path_ + "/data.mdb" : path_;
    check_whole(env, data_file);
    env_ = share_env(path_, data_file, folder ? 0 : MDB_NOSUBDIR);
    MDB_txn* begun = nullptr;
    check(mdb_txn_begin(env_.get(), nullptr, MDB_RDONLY, &begun), path_);
    txn_.reset(begun);
    MDB_dbi table;
    check(mdb_dbi_open(begun, nullptr, 0, &table), path_);
    const uint64_t samples = read_meta(table);
    find_records(table, samples);
  }

  size_t size() const override { return records_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  void read(size_t index, Sample& out) const override {
    out.name = path_ + ":" + lmdb_key(index);
    const LmdbRecord record = parse_record(records_[index], out.name);
    out.name.assign(path_).append(":").append(record.name);
    const std::string problem =
        check_payload(PayloadKind::kRaw, record.kind, record.channels, record.width, record.height,
                      record.bytes.size(), record.label, classes_.size());
    if (!problem.empty()) fail(ErrorKind::kData, "sample " + problem, out.name, kFetchAgain);
    out.label = labels_[record.label];
    set_encoding(out, record.kind, record.channels, record.width, record.height);
    out.bytes.assign(record.bytes.begin(), record.bytes.end());
    if (checksum_of(out.bytes) != record.crc)
      fail(ErrorKind::kData, "sample is damaged: wrong checksum", out.name, kFetchAgain);
  }

 private:
  uint64_t read_meta(MDB_dbi table) {
    std::string key(kLmdbMetaKey);
    MDB_val wanted{key.size(), key.data()}, value{};
    const int result = mdb_get(txn_.get(), table, &wanted, &value);
    if (result == MDB_NOTFOUND)
      fail(ErrorKind::kData, "LMDB was not written by saturate: it has no record \"saturate\"",
           path_, "Create it with saturate data pack SOURCE --out lmdb:FOLDER");
    check(result, path_);
    const LmdbMeta meta = parse_meta(bytes_of(value), path_);
    classes_ = meta.classes;
    std::sort(classes_.begin(), classes_.end());
    for (const std::string& name : meta.classes)
      labels_.push_back(std::lower_bound(classes_.begin(), classes_.end(), name) -
                        classes_.begin());
    return meta.samples;
  }

  void find_records(MDB_dbi table, uint64_t samples) {
    MDB_cursor* opened = nullptr;
    check(mdb_cursor_open(txn_.get(), table, &opened), path_);
    const LmdbCursorPtr cursor(opened);
    MDB_val key{}, value{};
    int result;
    while ((result = mdb_cursor_get(opened, &key, &value, MDB_NEXT)) == MDB_SUCCESS) {
      const std::string_view name = as_text(bytes_of(key));
      if (name == kLmdbMetaKey) continue;
      if (name != lmdb_key(records_.size()))
        fail(ErrorKind::kData, "LMDB has no record " + lmdb_key(records_.size()), path_,
             kFetchAgain);
      records_.push_back(bytes_of(value));
    }
    if (result != MDB_NOTFOUND) check(result, path_);
    if (records_.size() != samples || samples == 0)
      fail(ErrorKind::kData,
           "LMDB has " + std::to_string(records_.size()) + " records where " +
               std::to_string(samples) + " belong",
           path_, kFetchAgain);
  }

  static std::span<const std::byte> bytes_of(const MDB_val& value) {
    return {static_cast<const std::byte*>(value.mv_data), value.mv_size};
  }

  std::string path_;
  SharedEnv env_;
  LmdbTxnPtr txn_;  // keeps the pages that records_ points to
  std::vector<std::span<const std::byte>> records_;
  std::vector<std::string> classes_;
  std::vector<int64_t> labels_;  // by the file's own label
};

}  // namespace

std::unique_ptr<Dataset> open_lmdb(Env& env, const std::string& rest) {
  if (rest.empty()) fail(ErrorKind::kUsage, "lmdb: needs a path", "data.source", "Write lmdb:PATH");
  return std::make_unique<LmdbSource>(env, rest);
}

}  // namespace saturate
