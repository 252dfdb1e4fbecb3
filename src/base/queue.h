// A bounded multi-producer, multi-consumer FIFO. Every wait has a timeout, so no thread can hang
// forever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace saturate {

enum class QueueResult {
  kOk,
  kTimeout,
  kClosed,  // closed, and for pop also drained
};

// Safe for concurrent use.
template <class T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Waits for room. `value` is moved from only when the result is kOk.
  QueueResult push(T&& value, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!room_.wait_for(lock, timeout, [&] { return closed_ || items_.size() < capacity_; }))
      return QueueResult::kTimeout;
    if (closed_) return QueueResult::kClosed;
    items_.push_back(std::move(value));
    lock.unlock();
    filled_.notify_one();
    return QueueResult::kOk;
  }

  // Waits for an item. Items pushed before close() can still be popped after it.
  QueueResult pop(T& value, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!filled_.wait_for(lock, timeout, [&] { return closed_ || !items_.empty(); }))
      return QueueResult::kTimeout;
    if (items_.empty()) return QueueResult::kClosed;
    value = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    room_.notify_one();
    return QueueResult::kOk;
  }

  // Wakes every waiter. Idempotent.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    room_.notify_all();
    filled_.notify_all();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_, filled_;
  std::deque<T> items_;  // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace saturate
