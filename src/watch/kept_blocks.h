// Memory that was freed and waits for the next allocation of its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace saturate {

// Safe to use from any thread.
class KeptBlocks {
 public:
  // Smaller ones malloc keeps by itself.
  static constexpr size_t kLeastBytes = 64 << 10;

  struct Block {
    void* data;
    size_t bytes;
  };

  // The newest block of at least `bytes`, and of at most a page more, so that what a step is
  // counted to use does not depend on what was freed before it; null where there is none.
  void* take(size_t bytes);

  // Keeps a block; gives back, for the caller to free, the oldest ones that are beyond `most` bytes
  // of all that is kept.
  std::vector<Block> keep(Block block, size_t most);

  // The oldest ones beyond `most` bytes of all that is kept, for the caller to free.
  std::vector<Block> shrink(size_t most);

  // Everything, for the caller to free.
  std::vector<Block> take_all();

 private:
  std::vector<Block> oldest_beyond(size_t most);  // with mutex_ held

  std::mutex mutex_;
  std::vector<Block> blocks_;  // the oldest first; some hundreds at most, and few sizes
  size_t bytes_ = 0;
};

}  // namespace saturate
