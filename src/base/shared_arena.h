// One rank's part of the memory that ranks share, given out in blocks.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace saturate {

// Safe from any thread.
class SharedArena {
 public:
  // `memory` begins at a page and outlives this.
  SharedArena(std::byte* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  // A block of whole pages, lowest first; null where there is no room.
  std::byte* take(size_t bytes);
  // The system gets its memory back. REQUIRES: take() gave it.
  void give_back(std::byte* block);
  bool holds(const void* address) const;

 private:
  std::byte* const memory_;
  const size_t bytes_;
  std::mutex mutex_;
  std::map<size_t, size_t> taken_;  // size by place; guarded by mutex_
};

}  // namespace saturate
