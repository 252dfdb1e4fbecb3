#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <system_error>

#include "base/cancel.h"
#include "base/cgroup.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// On Linux each thread has its own nice level; process 0 means the calling thread. If the system
// refuses, the level stays unchanged.
void lower_priority(int nice) {
  if (nice > 0) setpriority(PRIO_PROCESS, 0, std::min(19, getpriority(PRIO_PROCESS, 0) + nice));
}

// Called in the handler of an exception that starting a thread threw.
[[noreturn]] void fail_threads(int number, int threads, const std::string& where) {
  std::string reason = "out of memory";
  try {
    throw;
  } catch (const std::system_error& error) {
    reason = error.code().message();
  } catch (const std::bad_alloc&) {
  }
  fail(ErrorKind::kRun,
       "cannot start thread " + std::to_string(number) + " of " + std::to_string(threads) + ": " +
           reason,
       where,
       "Raise the limit of processes (ulimit -u) or of memory (ulimit -v), or ask for fewer: "
       "data.threads, train.threads");
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : int(std::thread::hardware_concurrency());
  if (const int quota = cgroup_cores(); quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

ThreadPool::ThreadPool(int threads, const std::string& name, int nice) {
  threads_.reserve(size_t(threads));
  for (int i = 0; i < threads; ++i) {
    try {
      threads_.emplace_back([this, nice] { run(nice); });
    } catch (...) {
      end();  // destroying a joinable thread would terminate the process
      fail_threads(i + 1, threads, name);
    }
    pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
  }
}

void ThreadPool::run(int nice) {
  lower_priority(nice);
  MutexLock lock(mutex_);
  while (true) {
    while (!ending_ && tasks_.empty()) work_.wait(lock);
    if (ending_) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    lock.unlock();
    task();
    task = nullptr;  // releases its captures before anyone sees the pool idle
    lock.lock();
    if (--running_ == 0 && tasks_.empty()) idle_.notify_all();
  }
}

void ThreadPool::end() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    tasks_.clear();
  }
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::submit(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  work_.notify_one();
}

void ThreadPool::wait_idle() {
  MutexLock lock(mutex_);
  while (!tasks_.empty() || running_ != 0) idle_.wait(lock);
}

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  Mutex mutex;
  std::exception_ptr error;    // guarded by mutex
  size_t error_index = count;  // guarded by mutex
  const CancelTest cancel = cancel_test();
  const auto work = [&] {
    const CancelScope scope(cancel);
    for (size_t i; !failed && (i = next++) < count;) {
      try {
        body(i);
      } catch (...) {
        failed = true;
        MutexLock lock(mutex);
        if (i < error_index) {
          error_index = i;
          error = std::current_exception();
        }
      }
    }
  };
  const size_t workers = std::min(count, size_t(std::max(1, threads)));
  std::vector<std::thread> extra;
  extra.reserve(workers);
  try {
    for (size_t i = 1; i < workers; ++i) extra.emplace_back(work);
  } catch (const std::exception&) {
    // No more threads available: the existing ones do all the work.
  }
  work();
  for (auto& thread : extra) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace saturate
