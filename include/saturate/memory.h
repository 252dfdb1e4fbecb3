// Bytes of live tensors on a device: how many there are, how many there were at most, and how many
// there may be.
//
// On the CPU they are counted by an allocator put in front of torch's own, on the first call of
// tensor_memory(); what is allocated before that is not counted, nor is memory that torch did not
// allocate (the loader's batches, oneDNN's code), nor what is kept for reuse. A block counts as
// large as malloc made it. Counting costs some 20 ns an allocation. On a GPU the figures are the
// caching allocator's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace saturate {

// Of one device, for the whole process. Safe to use from any thread, but take_peak() has one peak
// for all who ask.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;
  virtual int64_t live_bytes() const = 0;
  // The most bytes alive at once since the last call (or ever): the next peak begins at what is
  // alive now.
  virtual int64_t take_peak() = 0;
  // What tensors can have at most where there is no budget: on the CPU half of the memory (of the
  // container's, if it is limited), for the rest of the process needs some too.
  virtual int64_t capacity() const = 0;
  // 0: none.
  virtual int64_t budget() const = 0;
  // From now on an allocation that would go beyond `bytes` throws c10::OutOfMemoryError, as it does
  // on a GPU that is full. What is alive stays. Fails with kUsage where a GPU's memory cannot be
  // limited, which takes a build with CUDA.
  virtual void set_budget(int64_t bytes) = 0;
  // Gives memory kept for reuse back to the device, or to the system.
  virtual void release_cache() = 0;
};

// REQUIRES: a CPU, or a CUDA device that is there. On the CPU the first call must not race with
// another thread's use of tensors.
TensorMemory& tensor_memory(const at::Device& device);

// For the process: a CPU tensor's memory of 64 KiB or more, once freed, waits for the next tensor
// of its size, or it goes back to malloc, which gives large blocks back to the system. What comes
// from the system is cleared, page by page, where it is first touched; a step that frees and
// allocates its activations anew pays that each time. What is alive and what waits come to at
// most 1.5 times what was ever alive at once. Without: what waits is freed. Off at first. As with
// tensor_memory(), the first call must not race with another thread's use of tensors; later ones
// are safe from any. Nothing is kept under AddressSanitizer, which would not see its use.
void keep_host_memory(bool keep);

// A budget for a scope; the one before it comes back after.
class MemoryBudget {
 public:
  // 0: leaves the budget as it is.
  MemoryBudget(TensorMemory& memory, int64_t bytes) : memory_(memory), before_(memory.budget()) {
    if (bytes > 0) memory_.set_budget(bytes);
  }
  ~MemoryBudget() {
    if (memory_.budget() != before_) memory_.set_budget(before_);
  }
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

 private:
  TensorMemory& memory_;
  int64_t before_;
};

}  // namespace saturate
