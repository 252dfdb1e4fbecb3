// Freed memory that is kept for later allocations of the same size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace saturate {

// Safe to use from any thread.
class KeptBlocks {
 public:
  // malloc keeps smaller ones by itself.
  static constexpr size_t kLeastBytes = 64 << 10;

  struct Block {
    void* data;
    size_t bytes;
  };

  // The newest block of at least `bytes` and at most a page more, so that the counted memory of a
  // step does not depend on earlier frees; null if there is none.
  void* take(size_t bytes);

  // Keeps a block; returns, for the caller to free, the oldest ones beyond a total of `most` bytes.
  std::vector<Block> keep(Block block, size_t most);

  // The oldest ones beyond a total of `most` bytes, for the caller to free.
  std::vector<Block> shrink(size_t most);

  // Everything, for the caller to free.
  std::vector<Block> take_all();

 private:
  std::vector<Block> oldest_beyond(size_t most);  // with mutex_ held

  std::mutex mutex_;
  std::vector<Block> blocks_;  // oldest first; at most some hundreds, of few sizes
  size_t bytes_ = 0;
};

}  // namespace saturate
