// ExtentCache: what the folder holds and has room for, and which processes use it.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/files.h"
#include "saturate/data/error.h"
#include "store/cache_names.h"
#include "store/cache_space.h"
#include "store/extent_cache.h"

namespace saturate {

constexpr int64_t kRescan = 10'000'000'000;  // ns from one look at all of a full folder to the next

bool ExtentCache::is_running(const std::string& process) {
  if (process == process_ || running_.contains(process)) return true;
  if (!is_locked(lock_path(process))) return false;
  running_.insert(process);
  return true;
}

bool ExtentCache::is_used_by_others(const std::vector<FileInfo>& entries) {
  for (const FileInfo& entry : entries) {
    const std::string process = process_in(entry.name);
    if (entry.name.starts_with(kUser) && process != process_ && is_running(process)) return true;
  }
  return false;
}

std::optional<std::vector<FileInfo>> ExtentCache::list(const std::string& name) const {
  try {
    return env_.list(folder_ + "/" + name);
  } catch (const Error&) {
    if (env_.is_directory(folder_ + "/" + name)) throw;
    return std::nullopt;
  }
}

void ExtentCache::scan(CacheSpace& space) {
  const int64_t begin = env_.now_ns();
  const auto before = std::exchange(known_, {});
  old_.clear();
  running_.clear();
  uint64_t used = 0;
  try {
    for (const FileInfo& info : env_.list(folder_))
      if (is_object_folder(info))
        used += scan_object(info.name);
      else if (info.is_directory && info.name == kLists)
        used += scan_lists();
      else
        remove_left(info);
  } catch (...) {
    order_.clear();  // nothing of it is in known_
    throw;
  }
  for (const auto& [hash, at] : before) {
    if (at == order_.end()) continue;
    const auto found = known_.find(hash);
    if (found != known_.end())
      found->second = at;
    else
      order_.erase(at);
  }
  space.used = used;
  is_stale_ = false;
  const int64_t now = env_.now_ns();
  next_scan_ns_ = now + std::max(kRescan, 50 * (now - begin));
}

void ExtentCache::remove_left(const FileInfo& info) {
  const std::string process = process_in(info.name), path = folder_ + "/" + info.name;
  if (process.empty()) return;
  if (info.name.starts_with(kProcess) && !info.is_directory && !is_running(process))
    env_.remove(path);
  if (!info.name.starts_with(kEvicted) || !info.is_directory) return;
  const auto entries = list(info.name);
  if (entries && is_own(*entries)) env_.remove_tree(path);
}

uint64_t ExtentCache::scan_lists() {
  const std::string folder = folder_ + "/" + std::string(kLists);
  uint64_t bytes = kCacheBlock;
  for (const FileInfo& file : list(std::string(kLists)).value_or(std::vector<FileInfo>())) {
    const std::string path = folder + "/" + file.name;
    if (file.is_directory) continue;
    if (file.name.starts_with(kUnfinished))
      env_.remove(path);
    else
      bytes += room_there(path);
  }
  return bytes;
}

uint64_t ExtentCache::room_there(const std::string& path) const {
  try {
    return room_of(env_.open_readable(path)->size());
  } catch (const Error&) {
    if (env_.exists(path)) throw;
    return 0;  // deleted meanwhile
  }
}

// Unfinished files are left by processes that have ended: others hold the lock while they write.
uint64_t ExtentCache::scan_object(const std::string& name) {
  const auto entries = list(name);
  if (!entries) return 0;
  const bool is_used = in_use_.contains(name), is_used_there = is_used_by_others(*entries);
  if (!is_used && !is_used_there && !is_own(*entries)) return 0;
  for (const FileInfo& entry : *entries) {
    if (entry.name.starts_with(kUnfinished) ||
        (entry.name.starts_with(kUser) && !is_running(process_in(entry.name))))
      env_.remove(folder_ + "/" + name + "/" + entry.name);
    if (entry_length(entry.name)) known_.emplace(entry_hash(name, entry.name), order_.end());
  }
  if (!is_used && !is_used_there) old_.push_back(name);
  return room_of_object(*entries);
}

// Half of what may be pending is left to what is read now.
bool ExtentCache::has_room(uint64_t room) const {
  room += pending_room_;
  return !is_off() && room <= tuning_.pending_cache_bytes / 2 &&
         (has_old_ || seen_used_ + room + kCacheBlock <= budget_);
}

bool ExtentCache::must_scan() {
  return (is_stale_ && env_.now_ns() >= next_scan_ns_) ||
         std::ranges::any_of(running_, [&](const std::string& other) {
           return !is_locked(lock_path(other));  // nobody may use its objects now
         });
}

void ExtentCache::remove(const std::string& identity, uint64_t offset, uint64_t length) {
  const std::string folder = folder_of(identity);
  std::vector<EntryRange> ranges;
  for (uint64_t i = 0; i < length; i += tuning_.read_bytes) {
    const EntryRange range{entry_number(identity, offset + i),
                           std::min<uint64_t>(tuning_.read_bytes, length - i)};
    const uint64_t hash = entry_hash(folder, entry_name(range.number, range.length));
    const MutexLock lock(mutex_);
    if (!removed_.insert(hash).second) continue;
    const auto found = known_.find(hash);
    if (found != known_.end() && found->second != order_.end())
      planned_[hash] = found->second->first;
    drop(hash);
    bad_.insert(hash);
    ranges.push_back(range);
  }
  // In turn with what is written: before that was read again.
  if (!ranges.empty()) writer_.submit([this, folder, ranges] { remove_files(folder, ranges); });
}

void ExtentCache::remove_files(const std::string& folder, const std::vector<EntryRange>& ranges) {
  const CancelScope scope([this] { return ending_.load(); });
  try {
    CacheSpace space(env_, folder_);
    look(space);
    for (const EntryRange& range : ranges) {
      const std::string name = entry_name(range.number, range.length);
      remove_counted(space, folder_ + "/" + folder + "/" + name, room_of_entry(range.length));
      const MutexLock lock(mutex_);
      drop(entry_hash(folder, name));
      bad_.erase(entry_hash(folder, name));
    }
    commit(space);
  } catch (const Error& error) {
    note_failure(error.what());
  }
}

}  // namespace saturate
