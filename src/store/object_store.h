// Objects of stores read by ranges: what readers ask for now, and what they have announced, in the
// order of announcement and within a budget of memory. Safe for concurrent use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "store/credential_source.h"
#include "store/extent_cache.h"
#include "store/http_calls.h"
#include "store/range_client.h"
#include "store/store_tuning.h"
#include "store/store_url.h"

namespace saturate {

// The folder of data.cache_dir, which may be empty. Fails with kUsage if it cannot be a cache.
std::string checked_cache_folder(const std::string& folder);

class ObjectStore {
 public:
  using ObjectPtr = std::shared_ptr<StoreObject>;

  // `env` must outlive this. Fails with kUsage if there is no libcurl.
  ObjectStore(Env& env, const StoreOptions& options, const StoreTuning& tuning = {});

  // Fails with kUsage on a bad URL, with kData if the object is missing or access is denied.
  ObjectPtr open(const std::string& url);
  // Fills `out` from `offset`. Fails with kRun if the store does not answer in time or the object
  // has changed, with kData past the end.
  void read(const ObjectPtr& object, uint64_t offset, std::span<std::byte> out);
  // A read of exactly this range comes, see ReadAdvice: kSoon; kLater, while announced ranges hold
  // less than half of the budget; or kToDisk. `next` is for ranges that are read by one request.
  void announce(const ObjectPtr& object, uint64_t offset, uint64_t length,
                ReadAdvice advice = ReadAdvice::kSoon, const ReadableFile::NextRange& next = {});
  // Those that begin in this range do not come, unless they wait already.
  void forget(const ObjectPtr& object, uint64_t offset, uint64_t length = 1);
  void forget_all(const ObjectPtr& object);
  // Keeps a range that was read as part of another one in the cache on disk, if there is one.
  void keep(const StoreObject& object, uint64_t offset, std::span<const std::byte> bytes);
  // The bytes that were read of this range are damaged: the next reads of it ask the store.
  void drop_copies(const ObjectPtr& object, uint64_t offset, uint64_t length);

  // An object of which a list told size and ETag: no request is needed to open it. `group`: names
  // the objects that the cache on disk keeps, and evicts, together.
  ObjectPtr known(const std::string& name, const StoreLocation& location, uint64_t size,
                  const std::string& etag, const std::string& group) const;
  // From now on the cache on disk evicts this group last.
  void use_group(const std::string& group);

  // Removes from the cache on disk the ranges of the group's objects but these: it has a new list.
  void keep_only(const std::string& group, size_t count,
                 const std::function<ObjectPtr(size_t)>& object);

  // Removes from the cache on disk what it holds of the objects that this process uses.
  void empty_cache() {
    if (cache_) cache_->empty();
  }

  // The cache on disk evicts a list that was read, if it has one of this name, after others.
  void use_list(const std::string& name);
  // Keeps a list in the folder of the cache, if there is one and it has room.
  void keep_list(const std::string& name, std::span<const std::byte> bytes);

  // For requests that are not for ranges.
  HttpCalls& calls() TAKES_LOCK(mutex_);
  const StoreOptions& options() const { return options_; }
  const StoreTuning& tuning() const { return tuning_; }
  Env& env() const { return env_; }

  uint64_t ahead_bytes() const { return tuning_.ahead_bytes; }
  // ReadableFile::request_bytes(), as measured so far. UINT64_MAX too if much has come that is not
  // read yet: then the readers are slower than the link.
  uint64_t request_bytes(const StoreObject& object) const;
  StoreCounts counts() const;
  // Waits until the cache has written what is pending.
  void flush();

 private:
  void warn_unknown(const StoreObject& object);
  // A range that a reader waits for or has announced.
  struct Piece {
    enum class State { kQueued, kLoading, kReady, kFailed };
    ObjectPtr object;
    uint64_t offset = 0, length = 0;
    State state = State::kQueued;
    uint64_t order = 0;                 // among those announced
    std::optional<uint64_t> turn = {};  // the same, if it is in queue_
    ReadableFile::NextRange next = {};  // may be empty
    std::shared_ptr<Piece> after = {};  // the range that `next` returned
    bool held = false;                  // counts in held_
    int waiting = 0;                    // readers
    ExtentCache::Bytes bytes = {};      // kReady
    std::exception_ptr error = {};      // kFailed
  };
  using PiecePtr = std::shared_ptr<Piece>;
  using Key = std::pair<const StoreObject*, uint64_t>;  // object and offset

  enum class For { kReader, kMemory, kDisk };  // whom a request is for

  // The object's in the cache on disk; "" if nothing of it is kept there now.
  std::string cached_identity(const StoreObject& object) const {
    return cache_ && object.is_cached ? object.identity() : "";
  }
  void read_piece(const ObjectPtr& object, uint64_t offset, std::span<std::byte> out);
  bool wait_for(const Piece& piece, MutexLock& lock) NEEDS_LOCK(mutex_);
  void load(std::vector<PiecePtr> pieces, For whom) NEEDS_LOCK(mutex_);
  void take(const std::vector<PiecePtr>& pieces, For whom, std::vector<std::byte>&& bytes,
            std::exception_ptr error) TAKES_LOCK(mutex_);
  static std::vector<ExtentCache::Bytes> divide(const std::vector<PiecePtr>& pieces,
                                                std::vector<std::byte>&& bytes);
  static bool is_for_disk(const Piece& piece);
  // Still in the queue: another process may have put it on the disk meanwhile.
  static bool waits_for_disk(const Piece& piece);
  void announce_piece(const ObjectPtr& object, uint64_t offset, uint64_t length, ReadAdvice advice,
                      const ReadableFile::NextRange& next) TAKES_LOCK(mutex_);
  // Whether the range is one that can be fetched ahead.
  bool is_ahead(const StoreObject& object, uint64_t offset, uint64_t length) const;
  void enqueue(const PiecePtr& piece, uint64_t turn) NEEDS_LOCK(mutex_);
  // A range that was announced for later, or for the disk, comes by an earlier turn.
  void hasten(Piece& piece, uint64_t turn) NEEDS_LOCK(mutex_);
  // Bytes that a range takes, of memory or of the disk.
  static uint64_t room_for(const Piece& piece);
  // Whether announced ranges like this one may take so many bytes more now.
  bool has_room(const Piece& piece, uint64_t room) NEEDS_LOCK(mutex_);
  // Starts requests for announced ranges while the budget allows it.
  void load_announced() NEEDS_LOCK(mutex_);
  // Requests for announced ranges of this size at a time: more if a reply mostly waits for its
  // first byte; fewer on a near link whose replies take longer than that, so that they delay each
  // other less.
  int most_loading(uint64_t length) const;
  // Bytes of one request for announced ranges: fewer if receiving them takes longer than waiting
  // for a reply.
  uint64_t most_merged() const;
  std::vector<PiecePtr> with_neighbours(const PiecePtr& piece) NEEDS_LOCK(mutex_);
  void unqueue(Piece& piece) NEEDS_LOCK(mutex_);
  void drop(std::map<Key, PiecePtr>::iterator at) NEEDS_LOCK(mutex_);

  const StoreOptions options_;
  const StoreTuning tuning_;
  Env& env_;
  const std::shared_ptr<CredentialSource> credentials_;
  std::unique_ptr<ExtentCache> cache_;    // may be null
  std::atomic<bool> has_unknown_{false};  // StoreCounts
  std::atomic<bool> has_warned_[2]{};     // of an object without an ETag; of one with a weak one
  mutable Mutex mutex_;
  Condition progress_;
  std::map<Key, PiecePtr> announced_ GUARDED_BY(mutex_);
  std::map<uint64_t, PiecePtr> queue_ GUARDED_BY(mutex_);  // kQueued, by turn
  uint64_t turns_ GUARDED_BY(mutex_) = 0;
  uint64_t held_ GUARDED_BY(mutex_) = 0;       // announced bytes that are loading or ready
  uint64_t ready_ GUARDED_BY(mutex_) = 0;      // of those, ready
  int loading_ GUARDED_BY(mutex_) = 0;         // requests for announced ranges
  int disk_loading_ GUARDED_BY(mutex_) = 0;    // of those, for the disk
  uint64_t disk_room_ GUARDED_BY(mutex_) = 0;  // what these will take there
  int waiting_ GUARDED_BY(mutex_) = 0;         // readers
  std::unique_ptr<HttpCalls> calls_ GUARDED_BY(mutex_);  // made when needed
  RangeClient client_;                                   // last: its thread uses all of the above
};

}  // namespace saturate
