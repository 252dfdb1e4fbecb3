#include "trace/kept_blocks.h"

#include <algorithm>
#include <iterator>

namespace saturate {

void* KeptBlocks::take(size_t bytes) {
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

std::vector<KeptBlocks::Block> KeptBlocks::keep(Block block, size_t most) {
  const MutexLock lock(mutex_);
  blocks_.push_back(block);
  bytes_ += block.bytes;
  return oldest_beyond(most);
}

std::vector<KeptBlocks::Block> KeptBlocks::shrink(size_t most) {
  const MutexLock lock(mutex_);
  return oldest_beyond(most);
}

std::vector<KeptBlocks::Block> KeptBlocks::oldest_beyond(size_t most) {
  auto end = blocks_.begin();
  for (; bytes_ > most; ++end) bytes_ -= end->bytes;
  std::vector<Block> oldest(blocks_.begin(), end);
  blocks_.erase(blocks_.begin(), end);
  return oldest;
}

}  // namespace saturate
