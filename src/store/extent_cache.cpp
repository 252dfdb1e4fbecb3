#include "store/extent_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/files.h"
#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint32_t kEntryMagic = 0x31585453;  // "STX1"
constexpr std::string_view kUnfinished = ".new-";
constexpr int64_t kPause = 60'000'000'000;  // ns without writing, after a failure
constexpr double kMostBudget = 1e18;        // bytes

// Precedes the bytes in a file.
struct EntryHeader {
  uint32_t magic, crc;  // of the identity, the offset and the bytes
  uint64_t length;
};

uint32_t entry_crc(const std::string& identity, uint64_t offset, std::span<const std::byte> bytes) {
  const uint32_t name = checksum_of(std::as_bytes(std::span(identity)));
  return checksum_of(bytes, checksum_of(std::as_bytes(std::span(&offset, 1)), name));
}

// Where the name of the object begins: after that of its group, if it has one.
size_t object_begin(std::string_view identity) {
  const size_t mark = identity.find('\x1f');
  return mark == std::string_view::npos ? 0 : mark + 1;
}

// Objects of a group share a folder: a hash keeps their ranges apart, and the checksum of an entry,
// which covers the identity, notices two of the same hash.
std::string entry_name(std::string_view identity, uint64_t offset, uint64_t length) {
  const size_t begin = object_begin(identity);
  if (begin > 0) offset = hash_text(identity.substr(begin), kHashStart ^ offset);
  return fmt::format("{:x}-{:x}", offset, length);
}

// The length from an entry's name.
std::optional<uint64_t> entry_length(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  return parsed_number<uint64_t>(name.substr(dash + 1), 16);
}

uint64_t entry_hash(std::string_view folder, std::string_view name) {
  return hash_text(name, hash_text(folder, kHashStart));
}

}  // namespace

ExtentCache::ExtentCache(Env& env, const std::string& folder, double gb, const StoreTuning& tuning)
    : env_(env), folder_(folder), tuning_(tuning) {
  try {
    env_.make_directories(folder_);
    const MutexLock lock(mutex_);
    if (gb > 0) budget_ = uint64_t(std::min(gb * 1e9, kMostBudget));
    scan();
    if (gb <= 0) budget_ = total_ + env_.free_bytes(folder_) / 2;
  } catch (const Error& error) {
    note_failure(error.what());
  }
}

ExtentCache::~ExtentCache() {
  flush();
}

std::string ExtentCache::folder_of(const std::string& object) const {
  const std::string_view identity = std::string_view(object).substr(
      0, object_begin(object) == 0 ? object.size() : object_begin(object));
  return fmt::format("{:016x}{:016x}", hash_text(identity, kHashStart),
                     hash_text(identity, 0x9ae16a3b2f90404full));
}

void ExtentCache::use(const std::string& identity) {
  const MutexLock lock(mutex_);
  const std::string folder = folder_of(identity);
  in_use_.insert(folder);
  std::erase_if(old_, [&](const Old& old) { return old.folder == folder; });
}

void ExtentCache::scan() {
  known_.clear();
  old_.clear();
  total_ = since_scan_ = 0;
  for (const FileInfo& info : env_.list(folder_))
    if (info.is_directory && info.name.size() == 32) scan_object(info.name);
}

void ExtentCache::scan_object(const std::string& name) {
  Old old{name, 0};
  std::vector<FileInfo> entries;
  try {
    entries = env_.list(folder_ + "/" + name);
  } catch (const Error&) {
    if (env_.is_directory(folder_ + "/" + name)) throw;
    return;  // another process has removed it
  }
  for (const FileInfo& entry : entries) {
    if (entry.name.starts_with(kUnfinished)) {
      if (begins_with_ended_process(entry.name.substr(kUnfinished.size())))
        env_.remove(folder_ + "/" + name + "/" + entry.name);
      continue;
    }
    const auto length = entry_length(entry.name);
    if (!length) continue;
    old.bytes += *length + sizeof(EntryHeader);
    known_.insert(entry_hash(name, entry.name));
  }
  total_ += old.bytes;
  if (!in_use_.contains(name)) old_.push_back(std::move(old));
}

bool ExtentCache::has(const std::string& identity, uint64_t offset, uint64_t length) const {
  const std::string folder = folder_of(identity), name = entry_name(identity, offset, length);
  {
    const MutexLock lock(mutex_);
    if (known_.contains(entry_hash(folder, name))) return true;
  }
  return env_.exists(folder_ + "/" + folder + "/" + name);  // another process may have written it
}

bool ExtentCache::read(const std::string& identity, uint64_t offset, std::span<std::byte> out) {
  const std::string folder = folder_of(identity), name = entry_name(identity, offset, out.size());
  const std::string path = folder_ + "/" + folder + "/" + name;
  try {
    if (!env_.exists(path)) return false;
    const auto file = env_.open_readable(path);
    EntryHeader header{};
    bool good = file->size() == sizeof header + out.size();
    if (good) {
      file->read_at(0, std::as_writable_bytes(std::span(&header, 1)));
      file->read_at(sizeof header, out);
      good = header.magic == kEntryMagic && header.length == out.size() &&
             header.crc == entry_crc(identity, offset, out);
    }
    if (good) {
      ++hits_;
      return true;
    }
    ++damaged_;
    env_.remove(path);
  } catch (const Error& error) {
    // Deleted meanwhile, or the disk fails.
    if (env_.exists(path)) note_failure(error.what());
  }
  const MutexLock lock(mutex_);
  if (known_.erase(entry_hash(folder, name)) > 0)
    total_ -= std::min<uint64_t>(total_, out.size() + sizeof(EntryHeader));
  return false;
}

void ExtentCache::write_later(const std::string& identity, uint64_t offset, const Bytes& bytes) {
  if (budget_ == 0 || pending_ + bytes->size() > tuning_.pending_cache_bytes) return;
  if (env_.now_ns() < paused_until_ns_) return;
  pending_ += bytes->size();
  writer_.submit([this, identity, offset, bytes] {
    write(identity, offset, *bytes);
    pending_ -= bytes->size();
  });
}

void ExtentCache::write(const std::string& identity, uint64_t offset,
                        std::span<const std::byte> bytes) {
  const uint64_t size = bytes.size() + sizeof(EntryHeader);
  const std::string folder = folder_of(identity), name = entry_name(identity, offset, bytes.size());
  const std::string path = folder_ + "/" + folder + "/" + name;
  const std::string unfinished = folder_ + "/" + folder + "/" + std::string(kUnfinished) +
                                 std::to_string(getpid()) + "-" + std::to_string(counter_++);
  try {
    if (env_.now_ns() < paused_until_ns_ || env_.exists(path) || !make_room(size)) return;
    env_.make_directories(folder_ + "/" + folder);
    const EntryHeader header{kEntryMagic, entry_crc(identity, offset, bytes), bytes.size()};
    const auto file = env_.open_writable(unfinished);
    file->append(std::as_bytes(std::span(&header, 1)));
    file->append(bytes);
    file->close();
    env_.rename(unfinished, path);
    const MutexLock lock(mutex_);
    known_.insert(entry_hash(folder, name));
    total_ += size;
    since_scan_ += size;
  } catch (const Error& error) {
    note_failure(error.what());
    discard(env_, unfinished);  // else the next scan removes it
  }
}

// Evicts objects that this process does not use, whole. Those in use stay: an epoch reads each of
// their samples once, so that exchanging one for another would gain nothing and cost a write.
bool ExtentCache::make_room(uint64_t bytes) {
  while (true) {
    std::string victim;
    {
      const MutexLock lock(mutex_);
      if (since_scan_ > budget_ / 16) scan();  // other processes write, too
      if (total_ + bytes <= budget_) return true;
      if (old_.empty()) return false;
      victim = old_.back().folder;
      total_ -= std::min(total_, old_.back().bytes);
      old_.pop_back();
    }
    env_.remove_tree(folder_ + "/" + victim);
  }
}

void ExtentCache::note_failure(const std::string& what) {
  paused_until_ns_ = env_.now_ns() + kPause;
  const MutexLock lock(mutex_);
  if (!std::exchange(warned_, true))
    print_warning(
        folder_ +
        ": the cache cannot be used at present, so that data come from the store: " + what);
}

void ExtentCache::add_counts(StoreCounts& counts) const {
  counts.disk_hits += hits_;
  counts.disk_damaged += damaged_;
}

}  // namespace saturate
