// The file in which the points of JPEG scans are kept between runs (data.index):
//
//   header     8 bytes "SATPOINT", version (uint32), 0 (uint32)
//   points     of each file, as ScanIndex codes them
//   directory  an IndexRecord for each file, by ascending key
//   trailer    IndexTrailer
//
// Little-endian. It is trusted with nothing: sizes and checksums are verified when it is opened and
// when points are read, and points against the JPEG when they are used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "image/scan_index.h"
#include "saturate/data/env.h"

namespace saturate {

struct IndexRecord {
  ScanKey key;
  uint64_t offset;  // of the coded points, from the start of the file
  uint32_t size;    // bytes
  uint32_t crc;     // CRC-32 of the key and the points
};
static_assert(sizeof(IndexRecord) == 32);

// The state of the file at an index's path. kUnreadable: it may be sound, and must not be replaced.
enum class IndexState { kAbsent, kSound, kDamaged, kOtherFile, kUnreadable };

// For any number of threads. Only the directory is in memory.
class IndexFile : public ScanStore {
 public:
  // Empty if there is no usable index there; `state` and `problem` then say why.
  static std::unique_ptr<IndexFile> open(Env& env, const std::string& path, IndexState& state,
                                         std::string& problem);

  bool find(const ScanKey& key, std::vector<uint8_t>& coded) const override;
  bool has(const ScanKey& key, size_t bytes) const override;
  void remove(const ScanKey& key) const override;
  bool has_wrong() const override { return has_wrong_; }

  size_t size() const { return records_.size(); }
  const IndexRecord& record(size_t i) const { return records_[i]; }
  uint64_t bytes() const { return bytes_; }  // of the file
  // False if another file, that can be read, has its path now.
  bool is_current(Env& env, const std::string& path) const;
  // The position of a file's record; size() if there is none.
  size_t position(const ScanKey& key) const;
  // Whether find() has returned its points, and whether remove() was called.
  bool is_used(size_t i) const { return use_[i] == kUsed; }
  bool is_removed(size_t i) const { return use_[i] == kRemoved; }
  void mark_used(size_t i) const { use_[i] = kUsed; }
  // False if they are damaged.
  bool read(size_t i, std::vector<uint8_t>& coded) const;

 private:
  enum : uint8_t { kNotUsed, kUsed, kRemoved };
  IndexFile() = default;
  std::string load(std::unique_ptr<ReadableFile> file);
  // False if they cannot be read.
  bool fetch(size_t i, std::vector<uint8_t>& coded) const;
  bool is_sound(size_t i, std::span<const uint8_t> coded) const;
  void mark_removed(size_t i) const;

  std::unique_ptr<ReadableFile> file_;
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;  // of the directory
  std::vector<IndexRecord> records_;
  mutable std::vector<std::atomic<uint8_t>> use_;
  mutable std::atomic<bool> has_wrong_{false};
};

struct IndexTotals {
  size_t files = 0;
  uint64_t bytes = 0;  // of the index
};

// Replaces the index at `path` by the points in memory and those of `old` (may be null) that `keep`
// accepts. Of two for one file the longer, which are more, are kept.
IndexTotals write_index(Env& env, const std::string& path, const ScanIndex& index,
                        const IndexFile* old, const std::function<bool(const IndexRecord&)>& keep);

}  // namespace saturate
