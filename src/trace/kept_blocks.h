// Freed memory that is kept for later allocations of the same size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "base/mutex.h"

namespace saturate {

// Safe to use from any thread.
class KeptBlocks {
 public:
  // malloc keeps smaller ones.
  static constexpr size_t kLeastBytes = 64 << 10;

  struct Block {
    void* data;
    size_t bytes;
  };

  // The newest block of at least `bytes` and at most a page more, so that the counted memory of a
  // step does not depend on earlier frees; null if there is none.
  void* take(size_t bytes) {
    constexpr size_t kPage = 4096;
    const MutexLock lock(mutex_);
    const auto fits = [&](const Block& block) {
      return block.bytes >= bytes && block.bytes - bytes <= kPage;
    };
    const auto newest = std::find_if(blocks_.rbegin(), blocks_.rend(), fits);
    if (newest == blocks_.rend()) return nullptr;
    void* const data = newest->data;
    bytes_ -= newest->bytes;
    blocks_.erase(std::next(newest).base());
    return data;
  }

  // Keeps a block; returns, for the caller to free, the oldest ones beyond a total of `most` bytes.
  std::vector<Block> keep(Block block, size_t most) {
    const MutexLock lock(mutex_);
    blocks_.push_back(block);
    bytes_ += block.bytes;
    return oldest_beyond(most);
  }

  // The oldest ones beyond a total of `most` bytes, for the caller to free.
  std::vector<Block> shrink(size_t most) {
    const MutexLock lock(mutex_);
    return oldest_beyond(most);
  }

 private:
  std::vector<Block> oldest_beyond(size_t most) NEEDS_LOCK(mutex_) {
    auto end = blocks_.begin();
    for (; bytes_ > most; ++end) bytes_ -= end->bytes;
    std::vector<Block> oldest(blocks_.begin(), end);
    blocks_.erase(blocks_.begin(), end);
    return oldest;
  }

  Mutex mutex_;
  // Oldest first; at most some hundreds, of few sizes.
  std::vector<Block> blocks_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

// For the process: keeps freed CPU tensor memory of 64 KiB or more for later tensors of the same
// size, instead of freeing it to malloc, which returns large blocks to the system. New memory from
// the system is cleared page by page on first touch, a cost in each step that reallocates its
// activations. Live plus kept memory is at most 1.5 times the peak of live memory. False: frees
// kept memory. Off by default. As with tensor_memory(), the first call must not race with another
// thread's use of tensors; later ones are safe from any thread. Keeps nothing under
// AddressSanitizer, which could not detect use after free. Returns the former setting.
bool keep_host_memory(bool keep);

}  // namespace saturate
