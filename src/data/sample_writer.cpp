#include "data/sample_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "base/files.h"
#include "data/atomic_file.h"
#include "data/bytes.h"
#include "data/field_table.h"
#include "data/lmdb_format.h"
#include "data/shard_format.h"
#include "data/tar_format.h"
#include "image/codec.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Pads `block` to `size` with zeros, the last four bytes being the checksum of the others.
void seal(std::vector<std::byte>& block, size_t size) {
  block.resize(size - sizeof(uint32_t));
  put_number(block, checksum_of(block));
}

class ShardWriter : public SampleWriter {
 public:
  ShardWriter(Env& env, const std::string& path, const Dataset& dataset)
      : dataset_(dataset), file_(env, path) {
    const std::string problem = problem_of(dataset.tensors(), dataset.classes().size());
    if (!dataset.tensors().empty() && !problem.empty())
      fail(ErrorKind::kData, "a shard cannot hold the source's tensors: " + problem, path,
           "Train on the source itself");
    std::vector<std::byte> header;
    put_text(header, kShardMagic);
    put_number(header, dataset.tensors().empty() ? kShardVersion : kTensorShardVersion);
    seal(header, kShardHeaderBytes);
    file_.append(header);
    file_.align(kShardPage);
  }

  void append(const Sample& sample, size_t length) override {
    if (sample.bytes.size() > std::numeric_limits<uint32_t>::max())
      fail(ErrorKind::kData, "sample is larger than 4 GiB", sample.name, "Give --max-side");
    const PayloadKind kind = kind_of(sample);
    const bool sized = kind == PayloadKind::kRaw || kind == PayloadKind::kSegmented;
    file_.align(kShardAlignment);
    names_ += sample.name;
    ShardRecord record{};
    record.offset = file_.size();
    record.size = uint32_t(sample.bytes.size());
    record.crc = checksum_of(sample.bytes);
    record.label = uint32_t(sample.label);
    record.kind = uint16_t(kind);
    record.channels = kind == PayloadKind::kRaw ? uint16_t(sample.channels) : uint16_t{0};
    record.width = sized ? uint32_t(sample.width) : uint32_t(length);
    record.height = sized ? uint32_t(sample.height) : 0;
    record.name_end = names_.size();
    records_.push_back(record);
    file_.append(sample.bytes);
  }

  void finish() override {
    file_.align(kShardPage);
    const uint64_t index_offset = file_.size();
    std::vector<std::byte> index;
    put_bytes(index, std::as_bytes(std::span(records_)));
    put_classes(index, dataset_.classes());
    put_fields(index, dataset_.tensors());
    if (!dataset_.tensors().empty()) put_sized(index, dataset_.note());
    put_text(index, names_);
    file_.append(index);

    std::vector<std::byte> trailer;
    put_text(trailer, kShardTrailerMagic);
    put_number(trailer, file_.size() + kShardTrailerBytes);
    put_number(trailer, index_offset);
    put_number(trailer, uint64_t{index.size()});
    put_number(trailer, uint64_t{records_.size()});
    put_number(trailer, uint32_t(dataset_.classes().size()));
    put_number(trailer, checksum_of(index));
    put_number(trailer, uint32_t(dataset_.tensors().size()));
    seal(trailer, kShardTrailerBytes);
    file_.append(trailer);
    file_.commit();
  }

 private:
  const Dataset& dataset_;
  AtomicFile file_;
  std::vector<ShardRecord> records_;
  std::string names_;
};

class TarWriter : public SampleWriter {
 public:
  TarWriter(Env& env, const std::string& path, const std::vector<std::string>& classes)
      : file_(env, path), classes_(classes) {
    check_folder_names(classes);
  }

  void append(const Sample& sample, size_t) override {
    file_.append(make_tar_header(member_name(classes_, number_++, sample), sample.bytes.size()));
    file_.append(sample.bytes);
    file_.align(kTarBlock);
  }

  void finish() override {
    file_.append(std::vector<std::byte>(2 * kTarBlock));  // the end marker
    file_.commit();
  }

 private:
  AtomicFile file_;
  const std::vector<std::string>& classes_;
  size_t number_ = 0;
};

constexpr size_t kBatchBytes = 16 << 20;  // per transaction

// Writes FOLDER/data.mdb under a temporary name. LMDB does its own I/O; the file is synced and
// renamed through Env.
class LmdbWriter : public SampleWriter {
 public:
  LmdbWriter(Env& env, const std::string& folder, const std::vector<std::string>& classes)
      : classes_(classes), path_(folder + "/data.mdb"), temporary_(env, path_) {
    const std::string& file = temporary_.get();
    discard(env, file);  // of an earlier process with this PID
    MDB_env* lmdb = nullptr;
    check(mdb_env_create(&lmdb), "create");
    lmdb_.reset(lmdb);
    check(mdb_env_open(lmdb, file.c_str(), MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0644), "create");
  }

  void append(const Sample& sample, size_t) override {
    pending_.push_back(encode_record(sample));
    pending_bytes_ += pending_.back().size();
    if (pending_bytes_ >= kBatchBytes) write_batch(false);
  }

  void finish() override {
    write_batch(true);
    check(mdb_env_sync(lmdb_.get(), 1), "sync");
    lmdb_.reset();
    temporary_.commit();
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
  const std::vector<std::string>& classes_;
  const std::string path_;
  TemporaryName temporary_;
  LmdbEnvPtr lmdb_;  // after the name: it is closed first
  std::vector<std::vector<std::byte>> pending_;
  size_t pending_bytes_ = 0, map_bytes_ = 0;
  uint64_t written_ = 0;
};

}  // namespace

std::unique_ptr<SampleWriter> write_shard(Env& env, const std::string& path,
                                          const Dataset& dataset) {
  return std::make_unique<ShardWriter>(env, path, dataset);
}

void check_folder_names(const std::vector<std::string>& classes) {
  for (const std::string& name : classes)
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      fail(ErrorKind::kData, "class name cannot be a folder's name", name, "Rename the class");
}

std::string member_name(const std::vector<std::string>& classes, size_t number,
                        const Sample& sample) {
  const char* const ending = ending_of(image_format_of(sample.bytes).value_or(ImageFormat::kJpeg));
  return fmt::format("{}/{:08}{}", classes[size_t(sample.label)], number, ending);
}

bool join_segments(Sample& sample) {
  if (sample.encoding != SampleEncoding::kSegmented) return false;
  std::vector<std::byte> file;
  const bool exact =
      JpegSegmenter().join(sample.bytes, sample.width, sample.height, sample.name, file);
  sample.bytes = std::move(file);
  sample.encoding = SampleEncoding::kEncoded;
  return exact;
}

void make_file(Sample& sample) {
  join_segments(sample);
  if (sample.encoding != SampleEncoding::kRaw) return;
  sample.bytes = encode_png(reinterpret_cast<const uint8_t*>(sample.bytes.data()), sample.width,
                            sample.height, sample.channels);
  sample.encoding = SampleEncoding::kEncoded;
}

std::unique_ptr<SampleWriter> write_tar(Env& env, const std::string& path, const Dataset& dataset) {
  return std::make_unique<TarWriter>(env, path, dataset.classes());
}

std::unique_ptr<SampleWriter> write_lmdb(Env& env, const std::string& path,
                                         const Dataset& dataset) {
  return std::make_unique<LmdbWriter>(env, path, dataset.classes());
}

}  // namespace saturate
