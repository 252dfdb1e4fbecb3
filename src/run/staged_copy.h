// Copies a GPU's tensors to pinned memory for a checkpoint, without making the host wait.
//
// The copies run on the training stream. Its later work, such as the next step, writes to
// parameters, statistics and optimizer state only after them, and memory that they use is reused in
// its order. A separate stream would gain nothing: the next forward writes to BatchNorm's
// statistics, and a replayed step is one launch, so that both would have to wait for the copies.
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
  // Bytes of one allocation; a larger tensor has a separate one. The sum is at most twice the
  // tensors' bytes and one slab.
  static constexpr size_t kSlab = size_t{32} << 20;

  // `device`: the tensors'. `stream`: the one that writes to them. `allocate`: pinned memory, or
  // plain memory, into which copies are slower and block.
  StagedCopy(const at::Device& device, std::unique_ptr<Stream> stream, BufferAllocator allocate);

  bool takes(const at::Tensor& tensor) const { return tensor.device() == device_; }
  // Enqueues a copy to `target`, as a file stores it: contiguous, on the CPU. Takes memory if the
  // target has another shape or type than the source, which happens in a run's first save only.
  void copy(const at::Tensor& source, at::Tensor& target);
  // Ends a set of copies.
  void record() { done_ = stream_->record(); }
  // Waits for the last set, after which the targets may be read; on any thread. Throws a copy's
  // exception.
  void wait() const {
    if (done_) stream_->host_waits(done_);
  }

 private:
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

// Copies `from` into `to`'s memory if that fits, as it does from one snapshot of a run to the next:
// new memory costs more than the copy. The copies have a file's layout, so that the writing thread
// converts nothing, and no operator there starts a second team of threads beside the training's.
// Those of tensors that `staged` (may be null) takes are then in progress.
void copy_tensors(const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to,
                  StagedCopy* staged);

}  // namespace saturate
