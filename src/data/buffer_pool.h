// Buffers of one size that go round: a buffer comes back when its last owner drops it.
#pragma once

#include <cstddef>
#include <memory>

#include "saturate/loader.h"

namespace saturate {

// Safe for concurrent use. Buffers may outlive the pool; they are then freed as they come back.
class BufferPool {
 public:
  // `allocate` may be empty: plain memory, aligned to 64 bytes.
  BufferPool(size_t bytes, BufferAllocator allocate);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Contents are undefined. Allocates only when no buffer is back.
  std::shared_ptr<std::byte> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace saturate
