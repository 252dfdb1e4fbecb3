// std::mutex, std::unique_lock and std::condition_variable with annotations for clang's
// -Wthread-safety, which `make tidy` checks: what is GUARDED_BY a mutex is used only while that
// mutex is held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define SATURATE_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define SATURATE_THREAD_SAFETY(attribute)
#endif
#define GUARDED_BY(mutex) SATURATE_THREAD_SAFETY(guarded_by(mutex))
// For a function that is called with the mutex held, and one that must not be.
#define NEEDS_LOCK(...) SATURATE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define TAKES_LOCK(...) SATURATE_THREAD_SAFETY(locks_excluded(__VA_ARGS__))

namespace saturate {

class SATURATE_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() SATURATE_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() SATURATE_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  bool try_lock() SATURATE_THREAD_SAFETY(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds the mutex until unlock() or the end of its scope.
class SATURATE_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SATURATE_THREAD_SAFETY(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  // After mutex.try_lock() returned true.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) NEEDS_LOCK(mutex) : lock_(mutex.mutex_, adopt) {}
  ~MutexLock() SATURATE_THREAD_SAFETY(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() SATURATE_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }
  void unlock() SATURATE_THREAD_SAFETY(release_capability()) { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// A condition variable. Wait in a loop, `while (!ready_) condition.wait(lock);`: the analysis does
// not see through a predicate.
class Condition {
 public:
  void wait(MutexLock& lock) { variable_.wait(lock.lock_); }
  // False: `until` is reached.
  template <class Clock, class Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& until) {
    return variable_.wait_until(lock.lock_, until) == std::cv_status::no_timeout;
  }
  void notify_one() { variable_.notify_one(); }
  void notify_all() { variable_.notify_all(); }

 private:
  std::condition_variable variable_;
};

}  // namespace saturate
