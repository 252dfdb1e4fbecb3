// One rank's part of the shared memory, allocated in blocks.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace saturate {

// Safe from any thread.
class SharedArena {
 public:
  // `memory` is page-aligned and outlives this.
  SharedArena(std::byte* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  // A block of whole pages, lowest address first; null if there is no room.
  std::byte* take(size_t bytes);
  // Returns its memory to the system. REQUIRES: `block` comes from take().
  void give_back(std::byte* block);
  bool holds(const void* address) const;

 private:
  std::byte* const memory_;
  const size_t bytes_;
  std::mutex mutex_;
  std::map<size_t, size_t> taken_;  // size by offset; guarded by mutex_
};

}  // namespace saturate
