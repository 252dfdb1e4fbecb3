// SPDX-License-Identifier: BSD-3-Clause
// Bytes of live tensors on a device: present number, peak and limit.
//
// On the CPU they are counted by a wrapper of torch's allocator, installed by the first call of
// tensor_memory(); earlier allocations are not counted, nor is memory that torch did not allocate
// (the loader's batches, oneDNN's code), nor cached memory. A block counts with malloc's actual
// size. Counting costs some 20 ns per allocation. On a GPU the figures are the caching allocator's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace saturate {

// For one device and the whole process. Safe to use from any thread, but all callers of take_peak()
// share one peak.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;
  virtual int64_t live_bytes() const = 0;
  // Peak of live bytes since the last call (or ever): the next peak starts at the present value.
  virtual int64_t take_peak() = 0;
  // Bytes: upper limit for tensors without a budget. On the CPU half of the memory (of the
  // container's, if limited), as the rest of the process needs some too. On a GPU what torch holds
  // and what is free, less 2 % of all, at least 1 GiB, at most a quarter of that sum, for others.
  virtual int64_t capacity() const = 0;
  // 0: none.
  virtual int64_t budget() const = 0;
  // From now on an allocation that would exceed `bytes` throws c10::OutOfMemoryError, as on a full
  // GPU. Live memory is unaffected. Fails with kUsage if a GPU's memory cannot be limited, which
  // needs a build with CUDA.
  virtual void set_budget(int64_t bytes) = 0;
  // Returns cached memory to the device, or to the system; for a GPU also cached pinned memory.
  virtual void release_cache() = 0;
};

// REQUIRES: a CPU, or an existing CUDA device. On the CPU the first call must not race with another
// thread's use of tensors.
TensorMemory& tensor_memory(const at::Device& device);

// A budget for a scope. Of several of one memory the last one made counts, in whatever order they
// end; the end of the last one restores the budget from before the first. A budget that the program
// sets meanwhile stays.
class MemoryBudget {
 public:
  // 0: changes nothing.
  MemoryBudget(TensorMemory& memory, int64_t bytes);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

 private:
  TensorMemory& memory_;
  const int64_t bytes_;
};

}  // namespace saturate
