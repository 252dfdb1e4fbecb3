// Sums over ranks of one machine, in memory that they share: two meetings, no message.
//
// Each rank has its values in its own part of the memory, or copies them there, and says so. Once
// all have, each rank reads its own slice of everybody's, adds them up in the order of ranks, and
// writes the result into everybody's. Once all have done that, the sums are there: the same bits on
// all ranks and in all runs, for one reading and one writing of the memory by each core.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "base/shared_arena.h"

namespace saturate {

// Another rank has ended, does not come, or came to something else; what() names it.
class RankMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How values of one type become one.
struct Combination {
  uint32_t kind;      // differs for each type and operation
  size_t value_size;  // bytes, a power of two up to 64
  // `parts`: `count` values of each rank, in order; the result goes into all of them.
  void (*apply)(std::byte* const* parts, int ranks, size_t count);
};

// Of values T, joined as Wide by Join()(so far, next).
template <class T, class Wide, class Join>
void combine_parts(std::byte* const* parts, int ranks, size_t count) {
  constexpr size_t kBlock = 1024;  // stays in the innermost cache
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
  // Of memory for `ranks` parts with `arena` bytes each for blocks, and of the part for values that
  // are not in such a block.
  static size_t bytes_for(int ranks, size_t arena, size_t staging = kStaging);

  struct Place {
    std::byte* memory;  // zeros at first; of bytes_for() the same arguments
    int rank, ranks;
    size_t arena, staging = kStaging;
  };
  // `has(rank)` says whether another rank is still there; it has come before this is made.
  SharedSum(const Place& place, std::function<bool(int)> has, std::chrono::milliseconds timeout);

  // Replaces the values of all ranks by their combination. All ranks make the same calls in the
  // same order. Fails with RankMissing, and so does every call after that, when a rank is gone,
  // does not come in time, or comes with another number of bytes or another `how`.
  void combine(void* values, size_t bytes, const Combination& how);
  // Values in its blocks need no copy.
  SharedArena& arena() { return arena_; }
  // Ends a call under way and all to come; to be called before this rank leaves.
  void stop() { stopped_ = true; }
  // To be called after it has left: others that wait for it look at once.
  void wake_others();

 private:
  static constexpr size_t kStaging = size_t{1} << 20;
  struct Header;
  struct Rank;

  Header& header() const;
  Rank& state(int rank) const;
  std::byte* part_of(int rank) const;
  size_t meet(std::byte* own, size_t proposed, size_t left, const Combination& how);
  void advance();
  void wait_for_all();
  void wait_for(int rank);
  void give_up(uint32_t why);
  [[noreturn]] void fail_with(uint32_t why);

  const Place place_;
  const std::function<bool(int)> has_;
  const std::chrono::milliseconds timeout_;
  SharedArena arena_;
  uint32_t phase_ = 0;  // two for each meeting
  std::string failed_;
  std::atomic<bool> stopped_{false};
};

}  // namespace saturate
