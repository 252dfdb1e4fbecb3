// A fixed set of threads that run tasks in the order they were submitted.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/env.h"

namespace saturate {

// submit() and wait_idle() are safe from any thread. The destructor finishes started tasks, drops
// the others, and joins.
class ThreadPool {
 public:
  // `name` shows in debuggers and traces, up to 15 characters. `nice` is added to the threads' nice
  // level, up to 19. Fails with kRun if the system cannot start more threads. REQUIRES: threads >
  // 0, nice >= 0.
  ThreadPool(int threads, const std::string& name, int nice = 0);
  ~ThreadPool() { end(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // A task must not throw.
  void submit(std::function<void()> task);
  // Blocks until no task is queued or running.
  void wait_idle();

 private:
  void run(int nice);
  void end();

  Mutex mutex_;
  Condition work_, idle_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  int running_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Calls body(i) for every i in [0, count) on up to `threads` threads, fewer if the system refuses,
// and waits. The first exception, by index, is rethrown after all threads have stopped. A
// CancelScope of this thread also holds on the others.
void parallel_for(size_t count, int threads, const std::function<void(size_t)>& body);

}  // namespace saturate
