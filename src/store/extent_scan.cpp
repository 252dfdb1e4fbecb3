// ExtentCache: what the folder holds and has room for, which processes use it, and what is evicted.
#include <algorithm>
#include <iterator>
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
constexpr int64_t kRescanEvery = 1'000;      // times its duration, which other processes wait for

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

// Holds the mutex only shortly: threads that read wait for it.
void ExtentCache::scan(CacheSpace& space) {
  const int64_t begin = env_.now_ns();
  Content found;
  {
    const MutexLock lock(mutex_);
    running_.clear();
    found.none = order_.end();
    is_stale_ = false;  // unless something is found missing from here on
  }
  uint64_t used = 0;
  for (const FileInfo& info : env_.list(folder_)) {
    space.note_progress();
    if (is_object_folder(info))
      used += scan_object(info.name, found);
    else if (info.is_directory && info.name == kLists)
      used += scan_lists(space, found);
    else
      remove_left(info);
  }
  space.used = used;
  const MutexLock lock(mutex_);
  for (const auto& [hash, at] : known_) {
    if (at == order_.end()) continue;
    const auto there = found.known.find(hash);
    if (there != found.known.end())
      there->second = at;
    else
      order_.erase(at);
  }
  for (const std::string& name : in_use_) found.old.erase(name);
  for (const std::string& name : used_lists_) found.old_lists.erase(name);
  known_.swap(found.known);
  old_.swap(found.old);
  old_lists_.swap(found.old_lists);
  const int64_t now = env_.now_ns();
  next_scan_ns_ = now + std::max(kRescan, kRescanEvery * (now - begin));
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

std::string ExtentCache::list_path(const std::string& name) const {
  return folder_ + "/" + std::string(kLists) + "/" + name;
}

uint64_t ExtentCache::scan_lists(CacheSpace& space, Content& found) {
  uint64_t bytes = kCacheBlock;
  for (const FileInfo& file : list(std::string(kLists)).value_or(std::vector<FileInfo>())) {
    space.note_progress();
    if (is_unfinished_file(file)) env_.remove(list_path(file.name));
    if (!is_list_file(file)) continue;  // another program's, whose folder this may be
    bytes += room_there(list_path(file.name));
    found.old_lists.insert(file.name);
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
uint64_t ExtentCache::scan_object(const std::string& name, Content& found) {
  const auto entries = list(name);
  if (!entries) return 0;
  bool is_used = is_used_by_others(*entries);
  {
    const MutexLock lock(mutex_);
    is_used = is_used || in_use_.contains(name);
  }
  if (!is_used && !is_own(*entries)) return 0;
  for (const FileInfo& entry : *entries) {
    if (is_unfinished_file(entry) ||
        (entry.name.starts_with(kUser) && !is_running(process_in(entry.name))))
      env_.remove(folder_ + "/" + name + "/" + entry.name);
    if (entry_length(entry.name)) found.known.emplace(entry_hash(name, entry.name), found.none);
  }
  if (!is_used) found.old.insert(name);
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

// Single ranges, since this run may use the others of the same object.
void ExtentCache::reduce(CacheSpace& space) {
  const MutexLock lock(mutex_);
  for (const std::string& folder : old_) {
    if (space.used <= budget_) return;
    const auto entries = list(folder);
    if (!entries || !is_own(*entries) || is_used_by_others(*entries)) continue;
    for (const FileInfo& entry : *entries) {
      const auto length = entry_length(entry.name);
      if (!length || space.used <= budget_) continue;
      drop(entry_hash(folder, entry.name));
      remove_counted(space, folder_ + "/" + folder + "/" + entry.name, room_of_entry(*length));
    }
  }
}

bool ExtentCache::make_room(CacheSpace& space, uint64_t bytes, uint64_t next_use) {
  if (bytes > budget_) return false;
  while (space.used + bytes > budget_) {
    std::string evicted;
    uint64_t room = 0;
    {
      MutexLock lock(mutex_);
      if (!old_.empty()) {
        evicted = take_old(room);
      } else if (!old_lists_.empty()) {
        const auto last = std::prev(old_lists_.end());
        const std::string path = list_path(*last);
        old_lists_.erase(last);
        remove_counted(space, path, room_there(path));
      } else if (must_scan()) {
        lock.unlock();
        scan(space);
        lock.lock();
      } else if (!order_.empty() && next_use < order_.rbegin()->first) {
        const Place last = order_.rbegin()->second;
        const std::string name = entry_name(last.number, last.length);
        drop(entry_hash(*last.folder, name));
        const std::string path = folder_ + "/" + *last.folder + "/" + name;
        is_stale_ |= !env_.exists(path);  // deleted, perhaps with others, and still counted
        remove_counted(space, path, room_of_entry(last.length));
      } else {
        return false;
      }
    }
    if (evicted.empty()) continue;
    env_.remove_tree(folder_ + "/" + evicted);
    space.used -= std::min(space.used, room);
  }
  return true;
}

std::string ExtentCache::take_old(uint64_t& room) {
  const std::string folder = std::move(old_.extract(std::prev(old_.end())).value());
  const auto entries = list(folder);
  if (!entries || !is_own(*entries) || is_used_by_others(*entries)) return "";
  std::string name = std::string(kEvicted) + process_ + "." + std::to_string(counter_++);
  try {
    env_.rename(folder_ + "/" + folder, folder_ + "/" + name);
  } catch (const Error&) {
    if (env_.is_directory(folder_ + "/" + folder)) throw;
    is_stale_ = true;  // deleted meanwhile, and still counted
    return "";
  }
  for (const FileInfo& entry : *entries) known_.erase(entry_hash(folder, entry.name));
  room = room_of_object(*entries);
  return name;
}

void ExtentCache::keep_only(const std::string& identity, std::span<const uint64_t> numbers) {
  keep_only_in(folder_of(identity), numbers);
}

void ExtentCache::empty() {
  flush();
  std::set<std::string> folders;
  {
    const MutexLock lock(mutex_);
    folders = in_use_;
  }
  for (const std::string& folder : folders) keep_only_in(folder, {});
}

void ExtentCache::keep_only_in(const std::string& folder, std::span<const uint64_t> numbers) {
  std::vector<EntryRange> others;
  try {
    for (const FileInfo& entry : list(folder).value_or(std::vector<FileInfo>())) {
      const auto length = entry_length(entry.name);
      if (!length) continue;
      const uint64_t number =
          parsed_number<uint64_t>(std::string_view(entry.name).substr(0, entry.name.find('-')), 16)
              .value();
      if (!std::ranges::binary_search(numbers, number)) others.push_back({number, *length});
    }
  } catch (const Error& error) {
    note_failure(error.what());
  }
  if (!others.empty() && !is_off()) remove_files(folder, others);
}

}  // namespace saturate
