#include "data/batch_memory.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "data/batch_room.h"
#include "data/volume_fields.h"

namespace saturate {
namespace {

constexpr size_t kBatchAlignment = 64;  // bytes

size_t aligned_bytes(size_t bytes) {
  return (bytes + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
}

std::shared_ptr<std::byte> allocate_aligned(size_t bytes) {
  void* memory = std::aligned_alloc(kBatchAlignment, aligned_bytes(bytes));
  if (!memory) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), std::free};
}

}  // namespace

size_t local_batch_size(const LoaderOptions& options) {
  const size_t world = size_t(options.shard.world), rank = size_t(options.shard.rank);
  return (options.batch + world - 1 - rank) / world;
}

std::vector<SampleColumn> columns_of(const Dataset& dataset, const LoaderOptions& options,
                                     const AugmentOptions& augment) {
  std::vector<SampleColumn> columns;
  if (options.has_tensors()) {
    const auto fields = VolumeFields(dataset.tensors(), options, augment).batch_columns();
    for (const BatchColumn& column : fields) columns.push_back({0, column.bytes_in_batch()});
    for (const BatchColumn& column : fields)
      if (column.form) columns.push_back({0, sizeof(VolumeEffects)});
  } else {
    const size_t area = size_t(augment.size.height) * size_t(augment.size.width);
    const bool places = options.output == BatchOutput::kPlaces;
    const size_t pixels = area * 3 * bytes_of(options.pixel_type());
    columns = {{0, places          ? 0
                   : options.packs ? whole_units(pixels)
                                   : pixels},
               {0, options.masks ? area : 0}};
  }
  size_t end = 0;
  for (SampleColumn& column : columns) {
    column.offset = end;
    end += column.size * local_batch_size(options);
    if (options.has_tensors()) end = aligned_bytes(end);
  }
  columns.push_back({end, 0});
  return columns;
}

std::shared_ptr<const std::vector<BatchColumn>> fields_of(
    const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
    const std::vector<SampleColumn>& columns) {
  if (dataset.tensors().empty()) return nullptr;
  auto fields = VolumeFields(dataset.tensors(), options, augment).batch_columns();
  size_t effects = fields.size();
  for (size_t i = 0; i < fields.size(); ++i) {
    fields[i].offset = columns[i].offset;
    if (fields[i].form) fields[i].effects = columns[effects++].offset;
  }
  return std::make_shared<const std::vector<BatchColumn>>(std::move(fields));
}

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
