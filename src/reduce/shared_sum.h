// All-reduce over ranks of one machine: two barriers on shared memory, no messages.
//
// Each rank puts its values in its own part of the memory and enters the first barrier. Then each
// rank adds up its own slice of all parts, in rank order, and writes the result into all parts.
// After the second barrier the sums are complete: the same bits on all ranks and in all runs, with
// each core reading and writing the memory once.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "base/mutex.h"

namespace saturate {

// Blocks of memory that the ranks share. Safe from any thread.
class SharedArena {
 public:
  // `memory` is page-aligned and outlives this.
  SharedArena(std::byte* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  // A block of whole pages, lowest address first; null if there is no room.
  std::byte* take(size_t bytes);
  // Returns its memory to the system. REQUIRES: `block` comes from take().
  void release(std::byte* block);
  bool holds(const void* address) const;

 private:
  std::byte* const memory_;
  const size_t bytes_;
  Mutex mutex_;
  std::map<size_t, size_t> taken_ GUARDED_BY(mutex_);  // size by offset
};

// Another rank has ended, timed out, or made a different call; what() names it.
class RankMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How values of one type are combined.
struct Combination {
  uint32_t kind;      // differs for each type and operation
  size_t value_size;  // bytes, a power of two up to 64
  // `parts`: `count` values of each rank, in order; the result is written to all of them.
  void (*apply)(std::byte* const* parts, int ranks, size_t count);
};

// For values T, combined in type Wide by Join()(so far, next).
template <class T, class Wide, class Join>
void combine_parts(std::byte* const* parts, int ranks, size_t count) {
  constexpr size_t kBlock = 1024;  // fits in the L1 cache
  Wide joined[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t size = std::min(kBlock, count - at);
    const T* const first = reinterpret_cast<const T*>(parts[0]) + at;
    for (size_t i = 0; i < size; ++i) joined[i] = static_cast<Wide>(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const T* const next = reinterpret_cast<const T*>(parts[rank]) + at;
      for (size_t i = 0; i < size; ++i) joined[i] = Join()(joined[i], static_cast<Wide>(next[i]));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      T* const out = reinterpret_cast<T*>(parts[rank]) + at;
      for (size_t i = 0; i < size; ++i) out[i] = static_cast<T>(joined[i]);
    }
  }
}

// combine() belongs to one thread; stop() and the arena are safe from any.
class SharedSum {
 public:
  static constexpr int kMostRanks = 64;
  // Size of the memory for `ranks` parts, with `arena` bytes each for blocks and `staging` for
  // values outside such a block.
  static size_t bytes_for(int ranks, size_t arena, size_t staging = kStaging);

  struct Layout {
    std::byte* memory;  // zero-filled; bytes_for() of the same arguments
    int rank, ranks;
    size_t arena, staging = kStaging;
  };
  // `has(rank)` says whether another rank is alive; all must have joined before this is made.
  SharedSum(const Layout& layout, std::function<bool(int)> has, std::chrono::milliseconds timeout);

  // All-reduces the values of all ranks. All ranks make the same calls in the same order. Fails
  // with RankMissing, as does every later call, when a rank is gone, times out, or passes another
  // number of bytes or another `how`.
  void combine(void* values, size_t bytes, const Combination& how);
  // Values in its blocks are not copied.
  SharedArena& arena() { return arena_; }
  // Ends present and future calls; to be called before this rank leaves.
  void stop() { stopped_ = true; }
  // To be called after it has left: wakes ranks that wait for it.
  void wake_others();

 private:
  static constexpr size_t kStaging = size_t{1} << 20;
  struct Header;
  struct Rank;

  Header& header() const;
  Rank& state(int rank) const;
  std::byte* part_of(int rank) const;
  size_t combine_some(std::byte* own, size_t proposed, size_t left, const Combination& how);
  void advance();
  void wait_for_all();
  void wait_for(int rank);
  void fail_all(uint32_t why);
  [[noreturn]] void fail_with(uint32_t why);

  const Layout layout_;
  const std::function<bool(int)> has_;
  const std::chrono::milliseconds timeout_;
  SharedArena arena_;
  uint32_t phase_ = 0;  // two per all-reduce round
  std::string failed_;
  std::atomic<bool> stopped_{false};
};

}  // namespace saturate
