// Work on several threads whose results are taken in order, a bounded number of them ahead.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/mutex.h"
#include "base/thread_pool.h"

namespace saturate {

// Items in flight. Invariant: these are [taken_, next_), and next_ - taken_ <= slots.
class OrderedWindow {
 public:
  OrderedWindow(size_t count, size_t slots) : count_(count), done_(slots) {}

  // Worker: claims the next item, waiting for room; nullopt when there is none left.
  std::optional<size_t> claim() {
    MutexLock lock(mutex_);
    while (!stopped_ && next_ < count_ && next_ - taken_ >= done_.size()) room_.wait(lock);
    if (stopped_ || next_ == count_) return std::nullopt;
    return next_++;
  }
  // Worker: the claimed item is done, or failed.
  void finish(size_t item, std::exception_ptr error) {
    {
      const MutexLock lock(mutex_);
      done_[item % done_.size()] = {true, std::move(error)};
    }
    progress_.notify_one();
  }
  // Consumer: waits until the oldest item is done; rethrows its failure.
  void wait() {
    MutexLock lock(mutex_);
    const State& oldest = done_[taken_ % done_.size()];
    while (!oldest.done) progress_.wait(lock);
    if (oldest.error) std::rethrow_exception(oldest.error);
  }
  // Consumer: the oldest item has been taken, its slot is free.
  void release() {
    {
      const MutexLock lock(mutex_);
      done_[taken_ % done_.size()] = {};
      ++taken_;
    }
    room_.notify_all();
  }
  // Makes every claim() return nullopt.
  void stop() {
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
    }
    room_.notify_all();
  }

 private:
  struct State {
    bool done = false;
    std::exception_ptr error;
  };
  const size_t count_;
  Mutex mutex_;
  Condition room_, progress_;
  std::vector<State> done_ GUARDED_BY(mutex_);  // item i in done_[i % slots]
  size_t next_ GUARDED_BY(mutex_) = 0, taken_ GUARDED_BY(mutex_) = 0;
  bool stopped_ GUARDED_BY(mutex_) = false;
};

// Calls produce(i, slot) for i in [0, count) on `threads` threads, and consume(i, slot) on this one
// in the order of i. Slots are reused. Throws the first failure in order, once all threads have
// stopped. A CancelScope of this thread also holds on the others.
template <class Slot, class Produce, class Consume>
void for_each_ordered(size_t count, int threads, const Produce& produce, const Consume& consume) {
  std::vector<Slot> slots(size_t(threads) * 4);
  OrderedWindow window(count, slots.size());
  ThreadPool pool(threads, "ordered");
  const struct Stopper {  // destroyed before the pool, which waits for its threads
    OrderedWindow& window;
    ~Stopper() { window.stop(); }
  } stopper{window};
  for (int t = 0; t < threads; ++t)
    pool.submit([&, cancel = cancel_test()] {
      const CancelScope scope(cancel);
      while (const auto item = window.claim()) {
        std::exception_ptr error;
        try {
          produce(*item, slots[*item % slots.size()]);
        } catch (...) {
          error = std::current_exception();
        }
        window.finish(*item, error);
      }
    });
  for (size_t i = 0; i < count; ++i) {
    window.wait();
    consume(i, slots[i % slots.size()]);
    window.release();
  }
}

}  // namespace saturate
