// Points of the scans of JPEG files, found when a file is decoded for the first time, so that later
// only the parts below the crop need to be decoded.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace saturate {

// A position inside a scan at which decoding can begin: the state before an MCU.
struct ScanPoint {
  uint64_t bit = 0;     // from the first byte of the scan's data, including stuffed bytes
  uint32_t dc[3] = {};  // predictors
  bool operator==(const ScanPoint&) const = default;
};

// Points before every `every`-th MCU of a row, in order. The last rows may be missing; then the
// first of them may have its first point.
struct ScanPoints {
  int every = 0, rows = 0, across = 0;  // across: points of a row
  std::vector<ScanPoint> point;
  // Rows all of whose points are known, with the end of the last.
  int known_rows() const {
    const size_t n = point.size();
    return across == 0                          ? 0
           : n == size_t(rows) * size_t(across) ? rows
                                                : int((n - (n > 0)) / size_t(across));
  }
};

// Checksums of a file's two halves, and its size. A file whose bytes have changed has another key,
// wherever it comes from: its points are not found.
struct ScanKey {
  uint64_t checksums = 0, bytes = 0;
  auto operator<=>(const ScanKey&) const = default;
};
ScanKey scan_key(std::span<const std::byte> file);

// Coded points outside memory, which may be damaged. For any number of threads.
class ScanStore {
 public:
  virtual ~ScanStore() = default;
  // Sets `coded` to a file's points; false if there are none.
  virtual bool find(const ScanKey& key, std::vector<uint8_t>& coded) const = 0;
  // Whether there are some that take at least so many bytes.
  virtual bool has(const ScanKey& key, size_t bytes) const = 0;
  // From now on there are none.
  virtual void remove(const ScanKey& key) const = 0;
  // Whether some were removed, or are damaged.
  virtual bool has_wrong() const = 0;
};

// For any number of threads.
class ScanIndex {
 public:
  static constexpr size_t kDefaultLimit = size_t{1} << 30;
  // Points beyond `limit` bytes of memory are not kept. Files without points in memory have those
  // of `store`, if there is one.
  explicit ScanIndex(size_t limit = kDefaultLimit, std::shared_ptr<const ScanStore> store = nullptr)
      : limit_(limit), store_(std::move(store)) {}

  // Sets `points` to those of a file; to none if it has none. They are within the file, but only
  // decoding shows whether they belong to it.
  void find(const ScanKey& key, ScanPoints& points) const;
  // The same, coded, as ScanStore::find().
  bool find_coded(const ScanKey& key, std::vector<uint8_t>& coded) const;
  // Replaces a file's points, unless it has more, or memory is short.
  void keep(const ScanKey& key, const ScanPoints& points);
  void remove(const ScanKey& key);
  // ScanStore::has_wrong() of the store.
  bool has_wrong() const;
  // Whether a file's points are in memory.
  bool has(const ScanKey& key) const;
  // Bytes of the points kept.
  size_t bytes() const { return bytes_; }
  // Bytes that keep() has coded since the beginning; for tests.
  uint64_t added() const { return added_; }
  // Replaces the store. Points that it has are removed from memory.
  void hand_over(const std::shared_ptr<const ScanStore>& store);
  // All points in memory, coded as ScanStore returns them.
  void visit(const std::function<void(const ScanKey&, std::span<const uint8_t>)>& see) const;

 private:
  struct Hash {
    size_t operator()(const ScanKey& key) const { return size_t(key.checksums ^ key.bytes << 32); }
  };
  struct Kept {
    size_t points;
    std::vector<uint8_t> coded;
  };
  struct Part {
    mutable Mutex mutex;
    std::unordered_map<ScanKey, Kept, Hash> kept GUARDED_BY(mutex);
  };
  void keep_points(const ScanKey& key, const ScanPoints& points);
  std::shared_ptr<const ScanStore> store() const;
  static constexpr size_t kParts = 16;  // with a lock each
  Part& part_of(const ScanKey& key) { return part_[key.checksums % kParts]; }
  const Part& part_of(const ScanKey& key) const { return part_[key.checksums % kParts]; }

  const size_t limit_;
  mutable Mutex store_mutex_;
  std::shared_ptr<const ScanStore> store_ GUARDED_BY(store_mutex_);
  std::atomic<size_t> bytes_{0};
  std::atomic<uint64_t> added_{0};
  Part part_[kParts];
};

}  // namespace saturate
