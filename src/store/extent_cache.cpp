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

constexpr uint32_t kEntryMagic = 0x31585453;                           // "STX1"
constexpr std::string_view kProcess = ".process-", kUser = ".user-";   // then a process
constexpr std::string_view kUnfinished = ".new-", kEvicted = ".old-";  // the same, and ".NUMBER"
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
uint64_t entry_number(std::string_view identity, uint64_t offset) {
  const size_t begin = object_begin(identity);
  return begin > 0 ? hash_text(identity.substr(begin), kHashStart ^ offset) : offset;
}

std::string entry_name(uint64_t number, uint64_t length) {
  return fmt::format("{:x}-{:x}", number, length);
}

// The length from an entry's name.
std::optional<uint64_t> entry_length(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !parsed_number<uint64_t>(name.substr(0, dash), 16))
    return std::nullopt;
  return parsed_number<uint64_t>(name.substr(dash + 1), 16);
}

uint64_t entry_hash(std::string_view folder, std::string_view name) {
  return hash_text(name, hash_text(folder, kHashStart));
}

// "PID-TIME"; the number of a process alone may be used again, also by one of another container.
std::string make_process_name(Env& env) {
  static std::atomic<uint64_t> made{0};
  return fmt::format("{}-{:x}", getpid(), uint64_t(env.now_ns()) + made++);
}

// The process in the name of a file or folder that it made; "" in an entry's.
std::string process_in(std::string_view name) {
  for (const std::string_view kind : {kProcess, kUser, kUnfinished, kEvicted})
    if (name.starts_with(kind)) return split_text(name.substr(kind.size()), '.')[0];
  return "";
}

bool is_object_folder(const FileInfo& info) {
  return info.is_directory && info.name.size() == 32 &&
         info.name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Whether a folder holds only what caches write into that of an object; else it is not evicted.
bool is_own(const std::vector<FileInfo>& entries) {
  return std::ranges::all_of(entries, [](const FileInfo& entry) {
    return !entry.is_directory && (entry.name.starts_with(kUnfinished) ||
                                   entry.name.starts_with(kUser) || entry_length(entry.name));
  });
}

}  // namespace

ExtentCache::ExtentCache(Env& env, const std::string& folder, double gb, const StoreTuning& tuning)
    : env_(env), folder_(folder), tuning_(tuning), process_(make_process_name(env)) {
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
  const MutexLock lock(mutex_);
  if (lock_) discard(env_, lock_path(process_));
}

std::string ExtentCache::lock_path(const std::string& process) const {
  return folder_ + "/" + std::string(kProcess) + process;
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
  if (!in_use_.insert(folder).second) return;
  std::erase_if(old_, [&](const Old& old) { return old.folder == folder; });
  try {
    mark(folder);
  } catch (const Error&) {
    // A disk that fails is reported by what it was to keep.
  }
}

void ExtentCache::mark(const std::string& folder) {
  const std::string path = folder_ + "/" + folder + "/" + std::string(kUser) + process_;
  env_.make_directories(folder_ + "/" + folder);
  try {  // again if the file was deleted, or taken for one of an ended process
    if (!lock_ || !env_.exists(lock_path(process_))) lock_ = env_.lock(lock_path(process_));
  } catch (const Error&) {
    // No locks are supported there: the mark does not count.
  }
  if (!env_.exists(path)) env_.open_writable(path)->close();
}

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

void ExtentCache::scan() {
  const auto before = std::exchange(known_, {});
  old_.clear();
  running_.clear();
  total_ = since_scan_ = 0;
  try {
    for (const FileInfo& info : env_.list(folder_))
      if (is_object_folder(info))
        scan_object(info.name);
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
}

void ExtentCache::remove_left(const FileInfo& info) {
  const std::string process = process_in(info.name), path = folder_ + "/" + info.name;
  if (process.empty() || is_running(process)) return;
  if (info.name.starts_with(kProcess) && !info.is_directory) env_.remove(path);
  if (!info.name.starts_with(kEvicted) || !info.is_directory) return;
  const auto entries = list(info.name);
  if (entries && is_own(*entries)) env_.remove_tree(path);
}

void ExtentCache::scan_object(const std::string& name) {
  Old old{name, 0};
  const auto entries = list(name);
  const bool is_used = in_use_.contains(name);
  if (!entries || (!is_used && !is_own(*entries))) return;
  for (const FileInfo& entry : *entries) {
    const std::string process = process_in(entry.name);
    if (!process.empty() && !is_running(process))
      env_.remove(folder_ + "/" + name + "/" + entry.name);
    const auto length = entry_length(entry.name);
    if (!length) continue;
    old.bytes += *length + sizeof(EntryHeader);
    known_.emplace(entry_hash(name, entry.name), order_.end());
  }
  total_ += old.bytes;
  if (!is_used && !is_used_by_others(*entries)) old_.push_back(std::move(old));
}

bool ExtentCache::plan(const std::string& identity, uint64_t offset, uint64_t length,
                       uint64_t next_use) {
  const std::string folder = folder_of(identity),
                    name = entry_name(entry_number(identity, offset), length);
  {
    const MutexLock lock(mutex_);
    if (next_use != ReadAdvice::kUnknown && !is_off())
      planned_[entry_hash(folder, name)] = next_use;
    if (known_.contains(entry_hash(folder, name))) return true;
  }
  return env_.exists(folder_ + "/" + folder + "/" + name);  // another process may have written it
}

uint64_t ExtentCache::take_planned_use(uint64_t hash) {
  const auto found = planned_.extract(hash);
  return found ? found.mapped() : ReadAdvice::kUnknown;
}

void ExtentCache::note(const std::string& folder, uint64_t number, uint64_t length,
                       uint64_t next_use) {
  const auto [at, is_new] =
      known_.try_emplace(entry_hash(folder, entry_name(number, length)), order_.end());
  if (is_new) {
    total_ += length + sizeof(EntryHeader);
    since_scan_ += length + sizeof(EntryHeader);
  }
  const auto object = in_use_.find(folder);
  if (next_use == ReadAdvice::kUnknown || object == in_use_.end()) return;
  if (at->second != order_.end()) order_.erase(at->second);
  at->second = order_.emplace(next_use, Place{&*object, number, length});
}

void ExtentCache::drop(uint64_t hash, uint64_t length) {
  const auto found = known_.extract(hash);
  if (!found) return;
  if (found.mapped() != order_.end()) order_.erase(found.mapped());
  total_ -= std::min(total_, length + sizeof(EntryHeader));
}

bool ExtentCache::read(const std::string& identity, uint64_t offset, std::span<std::byte> out) {
  const uint64_t number = entry_number(identity, offset);
  const std::string folder = folder_of(identity), name = entry_name(number, out.size());
  const std::string path = folder_ + "/" + folder + "/" + name;
  const uint64_t hash = entry_hash(folder, name);
  try {
    const bool exists = env_.exists(path);
    const auto file = exists ? env_.open_readable(path) : nullptr;
    EntryHeader header{};
    bool good = exists && file->size() == sizeof header + out.size();
    if (good) {
      file->read_at(0, std::as_writable_bytes(std::span(&header, 1)));
      file->read_at(sizeof header, out);
      good = header.magic == kEntryMagic && header.length == out.size() &&
             header.crc == entry_crc(identity, offset, out);
    }
    if (good) {
      ++hits_;
      hit_bytes_ += out.size();
      const MutexLock lock(mutex_);
      note(folder, number, out.size(), take_planned_use(hash));
      return true;
    }
    if (exists) {
      ++damaged_;
      env_.remove(path);
    }
  } catch (const Error& error) {
    // Deleted meanwhile, or the disk fails.
    if (env_.exists(path)) note_failure(error.what());
  }
  const MutexLock lock(mutex_);
  drop(hash, out.size());
  return false;
}

void ExtentCache::write_later(const std::string& identity, uint64_t offset, const Bytes& bytes) {
  if (is_off() || pending_ + bytes->size() > tuning_.pending_cache_bytes) return;
  pending_ += bytes->size();
  writer_.submit([this, identity, offset, bytes] {
    write(identity, offset, *bytes);
    pending_ -= bytes->size();
  });
}

void ExtentCache::write(const std::string& identity, uint64_t offset,
                        std::span<const std::byte> bytes) {
  const uint64_t number = entry_number(identity, offset);
  const std::string folder = folder_of(identity), name = entry_name(number, bytes.size());
  const std::string path = folder_ + "/" + folder + "/" + name;
  const std::string unfinished = folder_ + "/" + folder + "/" + std::string(kUnfinished) +
                                 process_ + "." + std::to_string(counter_++);
  uint64_t next_use = 0;
  {
    const MutexLock lock(mutex_);
    next_use = take_planned_use(entry_hash(folder, name));
  }
  try {
    if (is_off() || env_.exists(path) || !make_room(bytes.size() + sizeof(EntryHeader), next_use))
      return;
    {
      const MutexLock lock(mutex_);
      mark(folder);  // again if it was deleted
    }
    const EntryHeader header{kEntryMagic, entry_crc(identity, offset, bytes), bytes.size()};
    const auto file = env_.open_writable(unfinished);
    file->append(std::as_bytes(std::span(&header, 1)));
    file->append(bytes);
    file->close();
    env_.rename(unfinished, path);
    const MutexLock lock(mutex_);
    note(folder, number, bytes.size(), next_use);
  } catch (const Error& error) {
    note_failure(error.what());
    discard(env_, unfinished);  // else the next scan removes it
  }
}

bool ExtentCache::make_room(uint64_t bytes, uint64_t next_use) {
  while (true) {
    std::string evicted;
    {
      const MutexLock lock(mutex_);
      const auto has_ended = [&](const std::string& other) { return !is_locked(lock_path(other)); };
      if (since_scan_ > budget_ / 8) scan();  // other processes write, too
      if (total_ + bytes <= budget_) return true;
      if (!old_.empty()) {
        evicted = take_old();
      } else if (std::ranges::any_of(running_, has_ended)) {
        scan();  // what it used is evicted
      } else if (!order_.empty() && next_use < order_.rbegin()->first) {
        const Place last = order_.rbegin()->second;
        const std::string name = entry_name(last.number, last.length);
        drop(entry_hash(*last.folder, name), last.length);
        env_.remove(folder_ + "/" + *last.folder + "/" + name);
      } else {
        return false;
      }
    }
    if (!evicted.empty()) env_.remove_tree(folder_ + "/" + evicted);
  }
}

std::string ExtentCache::take_old() {
  const Old old = std::move(old_.back());
  old_.pop_back();
  std::string name;
  if (const auto entries = list(old.folder)) {
    if (!is_own(*entries) || is_used_by_others(*entries)) return "";
    name = std::string(kEvicted) + process_ + "." + std::to_string(counter_++);
    try {
      env_.rename(folder_ + "/" + old.folder, folder_ + "/" + name);
    } catch (const Error&) {
      if (env_.is_directory(folder_ + "/" + old.folder)) throw;
      name.clear();  // another process has removed it
    }
    for (const FileInfo& entry : *entries) known_.erase(entry_hash(old.folder, entry.name));
  }
  total_ -= std::min(total_, old.bytes);
  return name;
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
  counts.disk_bytes += hit_bytes_;
  counts.disk_damaged += damaged_;
}

}  // namespace saturate
