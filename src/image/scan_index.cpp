#include "image/scan_index.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/checksum.h"

namespace saturate {
namespace {

constexpr size_t kEntryBytes = 96;  // about what a map needs for an entry

// Seven bits a byte, the lowest first.
void put_number(std::vector<uint8_t>& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(uint8_t(value | 0x80));
  out.push_back(uint8_t(value));
}

// Reads numbers; after the end, or one that does not fit, ok() is false.
class NumberReader {
 public:
  explicit NumberReader(std::span<const uint8_t> bytes) : left_(bytes) {}
  uint64_t take() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      const uint8_t byte = left_.front();
      left_ = left_.subspan(1);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  bool ok() const { return ok_; }
  size_t left() const { return left_.size(); }

 private:
  std::span<const uint8_t> left_;
  bool ok_ = true;
};

// Small for small differences of either sign.
uint32_t fold(uint32_t difference) {
  return difference << 1 ^ (0 - (difference >> 31));
}

uint32_t unfold(uint32_t folded) {
  return folded >> 1 ^ (0 - (folded & 1));
}

// Each point less the one before it.
std::vector<uint8_t> encode(const ScanPoints& points) {
  std::vector<uint8_t> out;
  for (const int number : {points.every, points.rows, points.across})
    put_number(out, uint64_t(number));
  put_number(out, points.point.size());
  ScanPoint last;
  for (const ScanPoint& point : points.point) {
    put_number(out, point.bit - last.bit);
    for (int c = 0; c < 3; ++c) put_number(out, fold(point.dc[c] - last.dc[c]));
    last = point;
  }
  out.shrink_to_fit();
  return out;
}

constexpr uint64_t kMostAcross = 1 << 16;  // of rows, and of points of a row
constexpr size_t kLeastBytes = 4;          // of a point

// False if the bytes are not the points of a file of that size: the first is where the scan begins,
// and each other one is after the one before it.
bool decode(std::span<const uint8_t> coded, uint64_t file_bytes, ScanPoints& points) {
  NumberReader reader(coded);
  const uint64_t every = reader.take(), rows = reader.take(), across = reader.take();
  const uint64_t count = reader.take(), bits = file_bytes * 8;
  if (!reader.ok() || std::max({every, rows, across}) > kMostAcross || count > rows * across ||
      count > reader.left() / kLeastBytes)
    return false;
  points.every = int(every);
  points.rows = int(rows);
  points.across = int(across);
  points.point.resize(size_t(count));
  ScanPoint last;
  for (ScanPoint& point : points.point) {
    const bool is_first = &point == points.point.data();
    const uint64_t more = reader.take();
    if (more >= bits - last.bit || (more == 0) != is_first) return false;
    last.bit += more;
    for (uint32_t& dc : last.dc) dc += unfold(uint32_t(reader.take()));
    if (is_first && last != ScanPoint()) return false;
    point = last;
  }
  return reader.ok() && reader.left() == 0;
}

}  // namespace

ScanKey scan_key(std::span<const std::byte> file) {
  const size_t half = file.size() / 2;
  return {uint64_t(checksum_of(file.first(half))) << 32 | checksum_of(file.subspan(half)),
          file.size()};
}

void ScanIndex::find(const ScanKey& key, ScanPoints& points) const {
  points.point.clear();
  {
    const Part& part = part_of(key);
    const MutexLock lock(part.mutex);
    const auto found = part.kept.find(key);
    if (found != part.kept.end()) {
      if (!decode(found->second.coded, key.bytes, points)) points.point.clear();
      return;
    }
  }
  const auto store = this->store();
  std::vector<uint8_t> coded;
  if (!store || !store->find(key, coded) || decode(coded, key.bytes, points)) return;
  points.point.clear();
  store->remove(key);
}

bool ScanIndex::find_coded(const ScanKey& key, std::vector<uint8_t>& coded) const {
  {
    const Part& part = part_of(key);
    const MutexLock lock(part.mutex);
    const auto found = part.kept.find(key);
    if (found != part.kept.end()) {
      coded = found->second.coded;
      return true;
    }
  }
  const auto store = this->store();
  return store && store->find(key, coded);
}

bool ScanIndex::has(const ScanKey& key) const {
  const Part& part = part_of(key);
  const MutexLock lock(part.mutex);
  return part.kept.contains(key);
}

bool ScanIndex::has_wrong() const {
  const auto store = this->store();
  return store && store->has_wrong();
}

std::shared_ptr<const ScanStore> ScanIndex::store() const {
  const MutexLock lock(store_mutex_);
  return store_;
}

void ScanIndex::hand_over(const std::shared_ptr<const ScanStore>& store) {
  {
    const MutexLock lock(store_mutex_);
    store_ = store;
  }
  for (Part& part : part_) {
    const MutexLock lock(part.mutex);
    std::erase_if(part.kept, [&](const auto& entry) {
      const size_t bytes = entry.second.coded.size();
      if (!store->has(entry.first, bytes)) return false;
      bytes_ -= bytes + kEntryBytes;
      return true;
    });
  }
}

void ScanIndex::visit(
    const std::function<void(const ScanKey&, std::span<const uint8_t>)>& see) const {
  std::vector<std::pair<ScanKey, std::vector<uint8_t>>> copies;  // see() may take long
  for (const Part& part : part_) {
    copies.clear();
    {
      const MutexLock lock(part.mutex);
      for (const auto& [key, kept] : part.kept) copies.emplace_back(key, kept.coded);
    }
    for (const auto& [key, coded] : copies) see(key, coded);
  }
}

void ScanIndex::keep(const ScanKey& key, const ScanPoints& points) {
  if (bytes_ >= limit_) return;
  try {
    keep_points(key, points);
  } catch (const std::bad_alloc&) {
    // Without them the file is decoded from its start.
  }
}

void ScanIndex::keep_points(const ScanKey& key, const ScanPoints& points) {
  Kept kept{points.point.size(), encode(points)};
  Part& part = part_of(key);
  const MutexLock lock(part.mutex);
  const auto [at, added] = part.kept.try_emplace(key);
  if (!added && at->second.points >= kept.points) return;
  added_ += kept.coded.size();
  bytes_ += kept.coded.size() - at->second.coded.size() + (added ? kEntryBytes : 0);
  at->second = std::move(kept);
}

void ScanIndex::remove(const ScanKey& key) {
  if (const auto store = this->store()) store->remove(key);
  Part& part = part_of(key);
  const MutexLock lock(part.mutex);
  const auto found = part.kept.find(key);
  if (found == part.kept.end()) return;
  bytes_ -= found->second.coded.size() + kEntryBytes;
  part.kept.erase(found);
}

}  // namespace saturate
