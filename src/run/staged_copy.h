// A GPU's tensors on their way to a checkpoint: copied to page-locked host memory without making
// the host wait.
//
// The copies are work of the stream that trains. What it is given later, such as the next step,
// writes to parameters, statistics and optimizer state only after them, and memory that they use is
// given away in its order. A stream of its own would gain nothing: BatchNorm's statistics are
// written to by the very next forward, and a step that is replayed as a graph is one launch, so
// that both would have to wait for the copies anyway.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "saturate/data/loader.h"
#include "saturate/data/stream.h"
#include "saturate/model.h"

namespace saturate {

// For one thread at a time.
class StagedCopy {
 public:
  // Bytes asked of the allocator at once; a larger tensor has memory of its own. All of it comes to
  // at most twice the tensors' bytes and one slab.
  static constexpr size_t kSlab = size_t{32} << 20;

  // `device`: where the tensors are. `stream`: the one that writes to them. `allocate`: page-locked
  // memory; where it throws c10::Error, plain memory is taken, into which copies are slower and
  // block.
  StagedCopy(const at::Device& device, std::unique_ptr<Stream> stream, BufferAllocator allocate);

  bool takes(const at::Tensor& tensor) const { return tensor.device() == device_; }
  // Enqueues a copy to `target`, as a file stores it: contiguous, on the CPU. Takes memory where
  // the target is not of the source's shape and type, as it is from one save of a run to the next.
  void copy(const at::Tensor& source, at::Tensor& target);
  // Ends a set of copies.
  void record() { done_ = stream_->record(); }
  // Until then the targets are not to be read; waits for the last set, for any thread. Throws what
  // a copy threw.
  void wait() const {
    if (done_) stream_->host_waits(done_);
  }

 private:
  std::shared_ptr<std::byte> allocate(size_t bytes) const;
  at::Tensor take(const at::Tensor& like);

  const at::Device device_;
  const std::unique_ptr<Stream> stream_;
  const BufferAllocator allocate_;
  std::shared_ptr<std::byte> slab_;
  size_t used_ = 0;  // bytes of slab_
  std::shared_ptr<Event> done_;
};

// Null for a CPU, whose tensors are copied at once.
std::shared_ptr<StagedCopy> make_staged_copy(const at::Device& device);

// Copies `from` into `to`'s memory where that fits, as it does from one snapshot of a run to the
// next: fresh memory costs more than the copy. The copies lie as a file stores them, so that the
// writing thread has nothing to convert, and no operator there wakes a second team of threads
// beside the training's. Those that `staged`, which may be null, takes are under way then.
void copy_tensors(const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to,
                  StagedCopy* staged);

}  // namespace saturate
