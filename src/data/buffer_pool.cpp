#include "data/buffer_pool.h"

#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace saturate {
namespace {

std::shared_ptr<std::byte> allocate_aligned(size_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, padded);
  if (!memory) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), std::free};
}

}  // namespace

// Shared by the pool and all buffers in use.
struct BufferPool::Shared {
  size_t bytes;
  BufferAllocator allocate;
  Mutex mutex;
  bool closed GUARDED_BY(mutex) = false;
  std::vector<std::shared_ptr<std::byte>> free GUARDED_BY(mutex);

  void give_back(std::shared_ptr<std::byte> buffer) {
    const MutexLock lock(mutex);
    if (!closed) free.push_back(std::move(buffer));
  }
};

BufferPool::BufferPool(size_t bytes, BufferAllocator allocate)
    : shared_(std::make_shared<Shared>()) {
  shared_->bytes = bytes;
  shared_->allocate = allocate ? std::move(allocate) : allocate_aligned;
}

BufferPool::~BufferPool() {
  std::vector<std::shared_ptr<std::byte>> unused;
  const MutexLock lock(shared_->mutex);
  shared_->closed = true;
  unused.swap(shared_->free);
}

std::shared_ptr<std::byte> BufferPool::take() {
  std::shared_ptr<std::byte> buffer;
  {
    const MutexLock lock(shared_->mutex);
    if (!shared_->free.empty()) {
      buffer = std::move(shared_->free.back());
      shared_->free.pop_back();
    }
  }
  if (!buffer) buffer = shared_->allocate(shared_->bytes);
  std::byte* memory = buffer.get();
  return {memory, [shared = shared_, buffer = std::move(buffer)](std::byte*) mutable {
            shared->give_back(std::move(buffer));
          }};
}

}  // namespace saturate
