#include "store/extent_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/cancel.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/printable.h"
#include "saturate/data/error.h"
#include "store/cache_names.h"
#include "store/cache_space.h"

namespace saturate {
namespace {

constexpr uint32_t kEntryMagic = 0x31585453;  // "STX1"
constexpr int64_t kPause = 60'000'000'000;    // ns without writing, after a failure
constexpr double kMostBudget = 1e18;          // bytes
constexpr uint64_t kMostReserve = 1 << 20;    // bytes, for the files of locks
constexpr int kTries = 3;                     // to open or write while the folder is being deleted

uint32_t entry_crc(const std::string& identity, uint64_t offset, std::span<const std::byte> bytes) {
  const uint32_t name = checksum_of(std::as_bytes(std::span(identity)));
  return checksum_of(bytes, checksum_of(std::as_bytes(std::span(&offset, 1)), name));
}

// True also if the disk cannot tell.
bool may_exist(Env& env, const std::string& path) {
  try {
    return env.exists(path);
  } catch (const Error&) {
    return true;
  }
}

// "PID-TIME"; the number of a process alone may be used again, also by one of another container.
std::string make_process_name(Env& env) {
  static std::atomic<uint64_t> made{0};
  return fmt::format("{}-{:x}", getpid(), uint64_t(env.now_ns()) + made++);
}

}  // namespace

ExtentCache::ExtentCache(Env& env, const std::string& folder, double gb, const StoreTuning& tuning)
    : env_(env), folder_(folder), tuning_(tuning), process_(make_process_name(env)) {
  for (int i = 1; i <= kTries; ++i) {
    try {
      open(gb);
      return;
    } catch (const Error& error) {
      if (i == kTries) note_failure(error.what());
    }
  }
}

void ExtentCache::open(double gb) {
  const auto usable = [](uint64_t bytes) { return bytes - std::min(bytes / 64, kMostReserve); };
  env_.make_directories(folder_);
  // Without gb the least that it can be, in case what follows fails.
  budget_ =
      usable(gb > 0 ? uint64_t(std::min(gb * 1e9, kMostBudget)) : env_.free_bytes(folder_) / 2);
  CacheSpace space(env_, folder_);
  scan(space);
  if (gb <= 0) budget_ = usable(space.used / 2 + env_.free_bytes(folder_) / 2);
  reduce(space);
  make_room(space, 0, ReadAdvice::kUnknown);
  commit(space);
}

ExtentCache::~ExtentCache() {
  ending_ = true;
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
  old_.erase(folder);
  has_old_ = !old_.empty();
  try {
    if (env_.is_directory(folder_ + "/" + folder)) mark(folder);
  } catch (const Error&) {
    // A disk that fails is reported by what it was to keep.
  }
}

void ExtentCache::mark(const std::string& folder) {
  const std::string path = folder_ + "/" + folder + "/" + std::string(kUser) + process_;
  try {  // again if the file was deleted, or taken for one of an ended process
    if (!lock_ || !env_.exists(lock_path(process_))) lock_ = env_.lock(lock_path(process_));
  } catch (const Error&) {
    // No locks are supported there: the mark does not count.
  }
  if (!env_.exists(path)) env_.open_writable(path)->close();
}

bool ExtentCache::plan(const std::string& identity, uint64_t offset, uint64_t length,
                       uint64_t next_use) {
  const std::string folder = folder_of(identity),
                    name = entry_name(entry_number(identity, offset), length);
  {
    const uint64_t hash = entry_hash(folder, name);
    const MutexLock lock(mutex_);
    if (next_use != ReadAdvice::kUnknown && !is_off()) planned_[hash] = next_use;
    if (bad_.contains(hash)) return false;
    if (known_.contains(hash)) return true;
    const MutexLock pending(pending_mutex_);
    if (unwritten_.contains(hash)) return true;
  }
  try {
    return env_.exists(folder_ + "/" + folder + "/" + name);  // another process may have written it
  } catch (const Error&) {
    return false;  // it comes from the store
  }
}

uint64_t ExtentCache::take_planned_use(uint64_t hash) {
  const auto found = planned_.extract(hash);
  return found ? found.mapped() : ReadAdvice::kUnknown;
}

void ExtentCache::note(const std::string& folder, uint64_t number, uint64_t length,
                       uint64_t next_use) {
  const auto at =
      known_.try_emplace(entry_hash(folder, entry_name(number, length)), order_.end()).first;
  const auto object = in_use_.find(folder);
  if (next_use == ReadAdvice::kUnknown || object == in_use_.end()) return;
  if (at->second != order_.end()) order_.erase(at->second);
  at->second = order_.emplace(next_use, Place{&*object, number, length});
}

void ExtentCache::drop(uint64_t hash) {
  const auto found = known_.extract(hash);
  if (!found) return;
  if (found.mapped() != order_.end()) order_.erase(found.mapped());
}

bool ExtentCache::read(const std::string& identity, uint64_t offset, std::span<std::byte> out) {
  const uint64_t number = entry_number(identity, offset);
  const std::string folder = folder_of(identity), name = entry_name(number, out.size());
  const std::string path = folder_ + "/" + folder + "/" + name;
  const uint64_t hash = entry_hash(folder, name);
  const int64_t begin = env_.now_ns();
  {
    const MutexLock lock(mutex_);
    if (bad_.contains(hash)) return false;
  }
  Bytes unwritten;
  bool is_ahead = false;
  {
    const MutexLock lock(pending_mutex_);
    const auto found = unwritten_.find(hash);
    if (found != unwritten_.end()) unwritten = found->second;
    is_ahead = ahead_.erase(hash) > 0;
  }
  if (unwritten) {
    std::ranges::copy(*unwritten, out.begin());
    return true;
  }
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
      if (!is_ahead) {
        ++hits_;
        hit_bytes_ += out.size();
        hit_ns_ += env_.now_ns() - begin;
      }
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
    if (may_exist(env_, path)) note_failure(error.what());
  }
  const MutexLock lock(mutex_);
  is_stale_ |= known_.contains(hash);  // it was deleted, perhaps with others, or is damaged
  drop(hash);
  return false;
}

void ExtentCache::write_later(const std::string& identity, uint64_t offset, const Bytes& bytes,
                              bool is_ahead) {
  if (is_off() || pending_ + bytes->size() > tuning_.pending_cache_bytes) return;
  const uint64_t hash =
      entry_hash(folder_of(identity), entry_name(entry_number(identity, offset), bytes->size()));
  const uint64_t room = room_of_entry(bytes->size());
  {
    const MutexLock lock(pending_mutex_);
    unwritten_[hash] = bytes;
    ahead_.erase(hash);
    if (is_ahead) ahead_.insert(hash);
  }
  pending_ += bytes->size();
  pending_room_ += room;
  writer_.submit([this, identity, offset, bytes, hash, room] {
    const CancelScope scope([this] { return ending_.load(); });
    const bool is_kept = write(identity, offset, *bytes);
    pending_ -= bytes->size();
    pending_room_ -= room;
    const MutexLock lock(pending_mutex_);
    unwritten_.erase(hash);
    if (!is_kept) ahead_.erase(hash);
  });
}

bool ExtentCache::write(const std::string& identity, uint64_t offset,
                        std::span<const std::byte> bytes) {
  const uint64_t number = entry_number(identity, offset);
  const std::string folder = folder_of(identity), name = entry_name(number, bytes.size());
  uint64_t next_use = ReadAdvice::kUnknown;  // of one that is not read yet: it stays until then
  {
    const uint64_t hash = entry_hash(folder, name);
    const MutexLock lock(mutex_), pending(pending_mutex_);
    if (!ahead_.contains(hash)) next_use = take_planned_use(hash);
  }
  const auto fill = [&](WritableFile& file) {
    {
      const MutexLock lock(mutex_);
      mark(folder);  // again if it was deleted
    }
    const EntryHeader header{kEntryMagic, entry_crc(identity, offset, bytes), bytes.size()};
    file.append(std::as_bytes(std::span(&header, 1)));
    file.append(bytes);
  };
  if (!add({folder, name, bytes.size() + sizeof(EntryHeader), next_use}, fill)) return false;
  const MutexLock lock(mutex_);
  note(folder, number, bytes.size(), next_use);
  return true;
}

void ExtentCache::use_list(const std::string& name) {
  const MutexLock lock(mutex_);
  used_lists_.insert(name);
  old_lists_.erase(name);
}

bool ExtentCache::keep_list(const std::string& name, std::span<const std::byte> bytes) {
  use_list(name);
  Addition list{std::string(kLists), name, bytes.size()};
  list.replaces = true;
  return add(list, [&](WritableFile& file) { file.append(bytes); });
}

// A folder that is deleted meanwhile is made again at once.
bool ExtentCache::add(const Addition& addition, const std::function<void(WritableFile&)>& fill) {
  const std::string folder = folder_ + "/" + addition.folder, path = folder + "/" + addition.name;
  const std::string unfinished =
      folder + "/" + std::string(kUnfinished) + process_ + "." + std::to_string(counter_++);
  for (int i = 0; i < kTries && !is_off(); ++i) {
    std::optional<CacheSpace> space;
    bool has_folder = false, has_file = false;
    try {
      space.emplace(env_, folder_);
      look(*space);
      if (addition.replaces) remove_counted(*space, path, room_there(path));
      const bool is_there = env_.exists(path);
      const bool has_room =
          !is_there && make_room(*space, room_of(addition.size) + kCacheBlock, addition.next_use);
      if (has_room) {
        if (!env_.is_directory(folder)) space->used += kCacheBlock;
        env_.make_directories(folder);
        has_folder = true;
        const auto file = env_.open_writable(unfinished);
        has_file = true;
        fill(*file);
        file->close();
        env_.rename(unfinished, path);
        space->used += room_of(addition.size);
      }
      if (!has_room || space->is_current()) {
        commit(*space);
        return has_room || is_there;
      }
      env_.remove(path);  // nothing counts it
    } catch (const Error& error) {
      const bool is_deleted =
          space && (!space->is_current() || (has_folder && !may_exist(env_, folder)) ||
                    (has_file && !may_exist(env_, unfinished)));
      discard(env_, unfinished);
      if (is_deleted) continue;
      note_failure(error.what());
      return false;
    }
  }
  return false;
}

void ExtentCache::look(CacheSpace& space) {
  if (!space.is_known()) return scan(space);
  const MutexLock lock(mutex_);
  is_stale_ |= space.used != seen_used_;
}

void ExtentCache::commit(CacheSpace& space) {
  {
    const MutexLock lock(mutex_);
    seen_used_ = space.used;
    has_old_ = !old_.empty();
  }
  space.commit();
}

void ExtentCache::remove_counted(CacheSpace& space, const std::string& path, uint64_t room) {
  if (!env_.exists(path)) return;
  env_.remove(path);
  space.used -= std::min(space.used, room);
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
  counts.disk_s += double(hit_ns_) * 1e-9;
  counts.disk_damaged += damaged_;
  counts.cache_used = seen_used_;
  counts.cache_budget = budget_;
}

}  // namespace saturate
