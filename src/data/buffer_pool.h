// Reusable buffers of one size: a buffer returns to the pool when its last owner drops it.
#pragma once

#include <cstddef>
#include <memory>

#include "saturate/data/loader.h"

namespace saturate {

// Safe for concurrent use. Buffers may outlive the pool; they are then freed when dropped.
class BufferPool {
 public:
  // `allocate` may be empty: plain memory, aligned to 64 bytes.
  BufferPool(size_t bytes, BufferAllocator allocate);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Contents are undefined. Allocates only if no buffer is free.
  std::shared_ptr<std::byte> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace saturate
