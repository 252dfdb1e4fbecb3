// Ranges of objects kept in a folder. Each is a file with a checksum, written under another name
// and renamed, so that processes share the folder, and any part of it may be deleted at any time.
// No failure of the disk is an error: the range is fetched from the store again.
//
// A process marks the folders of the objects that it uses. Its marks count while it holds the lock
// of a separate file, which ends with it, also for processes of other containers.
//
// Processes write and evict in turn, under the lock of a CacheSpace, which counts the bytes of all;
// reads take no lock.
//
// If the budget is used up, objects that no process uses are evicted first, then lists that this
// process does not use, which others read only when they start. Then a new range takes
// the place of one that is read again in a later epoch (L. A. Belady, "A study of replacement
// algorithms for a virtual-storage computer", 1966), or is not kept. A process evicts only ranges
// that it has read and of which it knows the next use: any other may be another process's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "saturate/data/env.h"
#include "store/cache_space.h"
#include "store/store_tuning.h"

namespace saturate {

class ExtentCache {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  // `gb`: 1e9 bytes, at most, for files and folders; 0: half of what the folder's file system has
  // free or the folder holds. Creates the folder, and evicts what exceeds that.
  ExtentCache(Env& env, const std::string& folder, double gb, const StoreTuning& tuning);
  // Writes what is pending.
  ~ExtentCache() TAKES_LOCK(mutex_);

  // From now on this process uses the object. See StoreObject::identity(); not "".
  void use(const std::string& identity);
  // Whether the range is probably there. Unless `next_use` is kUnknown, it is read soon, and then
  // again in that epoch.
  bool plan(const std::string& identity, uint64_t offset, uint64_t length, uint64_t next_use);
  // Fills `out` with the range from `offset`; false if it is not there or damaged.
  bool read(const std::string& identity, uint64_t offset, std::span<std::byte> out);
  // Removes a damaged range that was read as a whole, once: if it is damaged again, it is so in the
  // store. Nothing reads it meanwhile.
  void remove(const std::string& identity, uint64_t offset, uint64_t length) TAKES_LOCK(mutex_);
  // Whether ranges for which room_of_entry() is so many bytes in sum can be written without
  // evicting others of this run. Does not wait.
  bool has_room(uint64_t room) const;
  // Writes the range from `offset` later, on another thread; read() returns it from memory until
  // then. Skips it if too much is pending, or if the budget is used up by ranges that are not
  // evicted for it. `is_ahead`: it was fetched for this, so that its first read is not counted as a
  // hit, and that it is not evicted before. Does not wait.
  void write_later(const std::string& identity, uint64_t offset, const Bytes& bytes,
                   bool is_ahead = false);
  // Removes the ranges of a group's objects whose entry_number() is not among these, which are
  // sorted: the group has a new list. Nothing reads them meanwhile.
  void keep_only(const std::string& identity, std::span<const uint64_t> numbers) TAKES_LOCK(mutex_);
  // Removes all ranges of the objects that this process uses. Nothing reads them meanwhile.
  void empty() TAKES_LOCK(mutex_);
  // This process has read lists/NAME, or will keep it.
  void use_list(const std::string& name) TAKES_LOCK(mutex_);
  // Keeps a list as lists/NAME, in the place of an older one. False if there is no room.
  bool keep_list(const std::string& name, std::span<const std::byte> bytes);
  // Waits until nothing is pending.
  void flush() { writer_.wait_idle(); }

  void add_counts(StoreCounts& counts) const;

 private:
  struct Place {                // the file of a range
    const std::string* folder;  // of in_use_
    uint64_t number, length;    // its name
  };
  using Order = std::multimap<uint64_t, Place>;  // by the epoch of their next use
  struct Addition {                              // a file
    std::string folder, name;
    uint64_t size = 0;
    uint64_t next_use = ReadAdvice::kUnknown;
    bool replaces = false;
  };

  struct Content {         // of the folder
    Order::iterator none;  // order_.end()
    std::unordered_map<uint64_t, Order::iterator> known;
    std::set<std::string> old, old_lists;
  };

  void open(double gb) TAKES_LOCK(mutex_);
  // Counts what the folder holds, and removes what ended processes left. Reads and plans of other
  // threads go on meanwhile.
  void scan(CacheSpace& space) TAKES_LOCK(mutex_);
  // These return the bytes that are taken there.
  uint64_t scan_object(const std::string& name, Content& found) TAKES_LOCK(mutex_);
  uint64_t scan_lists(CacheSpace& space, Content& found);
  std::string list_path(const std::string& name) const;
  uint64_t room_there(const std::string& path) const;
  void remove_left(const FileInfo& info);
  bool must_scan() NEEDS_LOCK(mutex_);
  // The entries of a folder in the folder; empty if another process has removed it.
  std::optional<std::vector<FileInfo>> list(const std::string& name) const;
  // Marks an object's folder, which exists.
  void mark(const std::string& folder) NEEDS_LOCK(mutex_);
  // Whether the process of a mark, which may be this one, has not ended. Only while the CacheSpace
  // is held, as the next.
  bool is_running(const std::string& process);
  bool is_used_by_others(const std::vector<FileInfo>& entries);
  // False if the range is not there afterwards.
  bool write(const std::string& identity, uint64_t offset, std::span<const std::byte> bytes);
  struct EntryRange {
    uint64_t number, length;  // of its name
  };
  void remove_files(const std::string& folder, const std::vector<EntryRange>& ranges);
  void keep_only_in(const std::string& folder, std::span<const uint64_t> numbers)
      TAKES_LOCK(mutex_);
  // The range is in the folder.
  void note(const std::string& folder, uint64_t number, uint64_t length, uint64_t next_use)
      NEEDS_LOCK(mutex_);
  void drop(uint64_t hash) NEEDS_LOCK(mutex_);
  // Removes the plan for a range, and returns its next use.
  uint64_t take_planned_use(uint64_t hash) NEEDS_LOCK(mutex_);
  // Writes a file under another name and renames it, if there is room. False if it is not there.
  bool add(const Addition& addition, const std::function<void(WritableFile&)>& fill)
      TAKES_LOCK(mutex_);
  void look(CacheSpace& space) TAKES_LOCK(mutex_);
  void commit(CacheSpace& space) TAKES_LOCK(mutex_);
  void remove_counted(CacheSpace& space, const std::string& path, uint64_t room);
  // Removes ranges of objects that no process uses, until the rest is within the budget.
  void reduce(CacheSpace& space) TAKES_LOCK(mutex_);
  bool make_room(CacheSpace& space, uint64_t bytes, uint64_t next_use) TAKES_LOCK(mutex_);
  // Renames the last folder of old_, unless it is used again. Returns its new name, or "", and the
  // bytes that it takes.
  std::string take_old(uint64_t& room) NEEDS_LOCK(mutex_);
  bool is_off() const { return budget_ == 0 || env_.now_ns() < paused_until_ns_; }
  std::string lock_path(const std::string& process) const;
  void note_failure(const std::string& what);
  std::string folder_of(const std::string& identity) const;

  Env& env_;
  const std::string folder_;
  const StoreTuning tuning_;
  const std::string process_;  // the name of this one: another one for each ExtentCache
  uint64_t budget_ = 0;        // bytes; constant once constructed
  std::atomic<uint64_t> pending_{0}, hits_{0}, hit_bytes_{0}, damaged_{0}, counter_{0};
  std::atomic<uint64_t> pending_room_{0};  // room_of_entry() of the pending ranges
  std::atomic<int64_t> hit_ns_{0};         // of the reads counted in hits_
  std::atomic<int64_t> paused_until_ns_{INT64_MIN};
  std::atomic<bool> ending_{false};  // a process that holds the cache is waited for 1 s
  mutable Mutex mutex_;
  std::unique_ptr<FileLock> lock_ GUARDED_BY(mutex_);  // taken with the first mark
  // Other processes, when last asked; used only while the CacheSpace is held.
  std::set<std::string> running_;
  Order order_ GUARDED_BY(mutex_);  // ranges that this process may evict
  // Ranges in the folder, by a hash; end(): not in the order.
  std::unordered_map<uint64_t, Order::iterator> known_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint64_t> planned_ GUARDED_BY(mutex_);  // next uses, by hash
  // Ranges that were damaged, by hash: those still to be removed, and all.
  std::set<uint64_t> bad_ GUARDED_BY(mutex_), removed_ GUARDED_BY(mutex_);
  std::set<std::string> in_use_ GUARDED_BY(mutex_);     // folders of objects
  std::set<std::string> old_ GUARDED_BY(mutex_);        // folders of objects that no process uses
  std::set<std::string> old_lists_ GUARDED_BY(mutex_);  // that this process does not use
  std::set<std::string> used_lists_ GUARDED_BY(mutex_);
  std::atomic<bool> has_old_{false};             // old_ is not empty
  std::atomic<uint64_t> seen_used_{0};           // CacheSpace::used, when last held
  bool is_stale_ GUARDED_BY(mutex_) = false;     // the folder has changed since the last scan
  int64_t next_scan_ns_ GUARDED_BY(mutex_) = 0;  // then is_stale_ is a reason for one
  bool warned_ GUARDED_BY(mutex_) = false;
  mutable Mutex pending_mutex_;  // never held while the disk is used
  std::unordered_map<uint64_t, Bytes> unwritten_ GUARDED_BY(pending_mutex_);  // pending, by hash
  // Fetched for the disk and not read yet, by hash.
  std::set<uint64_t> ahead_ GUARDED_BY(pending_mutex_);
  ThreadPool writer_{1, "cache-writer"};  // last: its thread uses all of the above
};

}  // namespace saturate
