// The memory of a loader's batches.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "saturate/data/loader.h"

namespace saturate {

// This process's samples of a full batch.
size_t local_batch_size(const LoaderOptions& options);

// A part of every sample: those of a batch follow one another in its memory.
struct SampleColumn {
  size_t offset = 0;  // bytes from the batch's memory on
  size_t size = 0;    // bytes of one sample
};

// An image's pixels and its mask, both possibly of no bytes, or the fields, then the VolumeEffects
// of each unfinished one; then one of no bytes at the end.
std::vector<SampleColumn> columns_of(const Dataset& dataset, const LoaderOptions& options,
                                     const AugmentOptions& augment);

// batch_fields() with the offsets of `columns`; null for images.
std::shared_ptr<const std::vector<BatchColumn>> fields_of(const Dataset& dataset,
                                                          const LoaderOptions& options,
                                                          const AugmentOptions& augment,
                                                          const std::vector<SampleColumn>& columns);

// Reusable buffers of one size: a buffer returns to the pool when its last owner drops it. Buffers
// may outlive the pool; they are then freed when dropped. Safe for concurrent use.
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
