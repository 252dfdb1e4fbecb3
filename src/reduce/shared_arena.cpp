#include "reduce/shared_arena.h"

#include <sys/mman.h>

#include <functional>

namespace saturate {
namespace {

constexpr size_t kArenaPage = 4096;

}  // namespace

std::byte* SharedArena::take(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  const size_t size = (bytes + kArenaPage - 1) / kArenaPage * kArenaPage;
  const std::lock_guard lock(mutex_);
  size_t place = 0;
  for (const auto& [begin, length] : taken_) {
    if (begin - place >= size) break;
    place = begin + length;
  }
  if (bytes_ - place < size) return nullptr;
  taken_[place] = size;
  return memory_ + place;
}

void SharedArena::give_back(std::byte* block) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(size_t(block - memory_));
  madvise(block, found->second, MADV_REMOVE);  // optional: not all systems support it
  taken_.erase(found);
}

bool SharedArena::holds(const void* address) const {
  const std::less<const void*> before;
  return !before(address, memory_) && before(address, memory_ + bytes_);
}

}  // namespace saturate
