#include "image/scan_index.h"

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

uint64_t take_number(const uint8_t*& at) {
  uint64_t value = *at & 0x7f;
  for (int shift = 7; *at++ & 0x80; shift += 7) value |= uint64_t(*at & 0x7f) << shift;
  return value;
}

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

void decode(const std::vector<uint8_t>& coded, ScanPoints& points) {
  const uint8_t* at = coded.data();
  for (int* number : {&points.every, &points.rows, &points.across}) *number = int(take_number(at));
  points.point.resize(take_number(at));
  ScanPoint last;
  for (ScanPoint& point : points.point) {
    last.bit += take_number(at);
    for (uint32_t& dc : last.dc) dc += unfold(uint32_t(take_number(at)));
    point = last;
  }
}

}  // namespace

ScanKey scan_key(std::span<const std::byte> file) {
  const size_t half = file.size() / 2;
  return {uint64_t(checksum_of(file.first(half))) << 32 | checksum_of(file.subspan(half)),
          file.size()};
}

void ScanIndex::find(const ScanKey& key, ScanPoints& points) const {
  points.point.clear();
  const Part& part = part_of(key);
  const MutexLock lock(part.mutex);
  const auto found = part.kept.find(key);
  if (found != part.kept.end()) decode(found->second.coded, points);
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
  bytes_ += kept.coded.size() - at->second.coded.size() + (added ? kEntryBytes : 0);
  at->second = std::move(kept);
}

void ScanIndex::remove(const ScanKey& key) {
  Part& part = part_of(key);
  const MutexLock lock(part.mutex);
  const auto found = part.kept.find(key);
  if (found == part.kept.end()) return;
  bytes_ -= found->second.coded.size() + kEntryBytes;
  part.kept.erase(found);
}

}  // namespace saturate
