// The loader's batches in flight: threads claim a few samples at a time in the epoch's order, and
// the consumer takes finished batches in that order. Independent of images.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "data/batch_room.h"
#include "data/network_share.h"
#include "saturate/data/loader.h"

namespace saturate {

// A sample that could not be filled.
struct SampleFailure {
  size_t slot;  // index in the batch
  std::string name;
  std::exception_ptr error;
  // The reason of an Error of kData; else nullopt.
  std::optional<std::string> data_error() const;
};

// A batch being filled, or waiting, with what only the ring needs. Only the thread that claimed
// sample i accesses batch.samples[i] and its pixels; the rest belongs to the ring.
struct BatchSlot {
  Batch batch;                          // pixels and samples; samples are used again
  std::vector<SampleFailure> failures;  // guarded by the ring's mutex while filling
  size_t left = 0;                      // samples not finished; guarded by the ring's mutex
  BatchRoom room;                       // of a packing loader
};

// Work for one thread: samples [first, first + count) of `slot`, which is that batch of the epoch.
struct Claim {
  BatchSlot* slot;
  size_t batch;
  size_t first, count;
  uint32_t epoch;
};

// claim() is for the worker threads, everything else for the one consumer, except ready().
//
// Workers share the cores with training, so as few of them as possible are awake. New batches are
// opened when half of the slots are free, and one worker is woken for them. A worker, or a new
// batch, wakes another one only while less than half of the slots are finished. A consumer that has
// to wait wakes all.
//
// Invariant: batches [taken_, opened_) are in flight, batch b in slots_[b % slots_.size()], and
// opened_ - taken_ <= slots_.size(). Samples before next_sample_ have been claimed.
class BatchRing {
 public:
  // Sets the memory of a slot whose samples are known.
  using MemorySource = std::function<void(BatchSlot&)>;

  // `most`: maximum samples in a claim.
  BatchRing(size_t slots, size_t batch, size_t most, std::chrono::nanoseconds wait_limit,
            MemorySource provide);

  // Worker: reports `claimed` (if not null) as finished, except `failures` of it, which it empties,
  // and claims the next samples, waiting for them without limit. False when the ring has been shut
  // down.
  bool claim(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures);
  // Worker: only reports, as claim() does, before it does other work.
  void finish(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures);
  // The claimed samples are no longer wanted: a worker may report them unfilled.
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // A worker with claimed samples begins, or ends, to wait for a store.
  void set_blocked(bool blocked);

  // Starts an epoch over samples order[first_batch * batch .. end). REQUIRES: stopped.
  void start(uint32_t epoch, std::vector<uint32_t> order, size_t first_batch, size_t end);
  // Waits for the oldest batch in flight; null when all have been taken. The slot belongs to the
  // caller until release().
  BatchSlot* front();
  // Waits at most `limit` until front() would not wait; false on timeout.
  bool wait(std::chrono::nanoseconds limit);
  // Returns the slot of front(), to be filled with the next batch.
  void release();
  // Hands out no more samples and waits for those claimed. Drops all batches.
  void stop();
  // Makes the workers' claim() return false.
  void shut_down();

  size_t ready() const;
  // The network's part of the time that front() and wait() have waited so far. Any thread.
  std::chrono::nanoseconds network_wait() const;

 private:
  void open_slots();
  void report(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures)
      NEEDS_LOCK(mutex_);
  void set_busy(size_t busy) NEEDS_LOCK(mutex_);
  // Samples that wait for a worker; batches that wait for the consumer; whether they may run out.
  size_t unclaimed() const NEEDS_LOCK(mutex_);
  size_t finished() const NEEDS_LOCK(mutex_);
  bool is_short() const NEEDS_LOCK(mutex_) { return finished() < half(); }
  size_t half() const { return (slots_.size() + 1) / 2; }
  [[noreturn]] void fail_waiting(const std::string& what) const;

  const size_t batch_, most_;
  const std::chrono::nanoseconds wait_limit_;
  const MemorySource provide_memory_;

  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  Condition work_, progress_;
  // Written under mutex_, by the consumer alone, which reads them without; slots as BatchSlot says.
  std::vector<BatchSlot> slots_;
  std::vector<uint32_t> order_;
  size_t end_ = 0;                 // samples of the epoch
  size_t taken_ = 0, opened_ = 0;  // batches
  uint32_t epoch_ GUARDED_BY(mutex_) = 0;
  size_t next_sample_ GUARDED_BY(mutex_) = 0;  // next to be claimed
  size_t busy_ GUARDED_BY(mutex_) = 0;         // claims not finished
  bool ending_ GUARDED_BY(mutex_) = false;
  NetworkShare network_ GUARDED_BY(mutex_);
};

}  // namespace saturate
