#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "saturate/data/error.h"

namespace saturate {
namespace {

// cgroup v2's "quota period" in microseconds, or "max"; 0 when unlimited or unknown.
int cgroup_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  return std::max(1, int(std::ceil(quota / period)));
}

// On Linux each thread has its own nice level; process 0 means the calling thread. If the system
// refuses, the level stays unchanged.
void give_way(int nice) {
  if (nice > 0) setpriority(PRIO_PROCESS, 0, std::min(19, getpriority(PRIO_PROCESS, 0) + nice));
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

namespace {

// Called where starting a thread has thrown.
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

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work, idle;
  std::deque<std::function<void()>> tasks;  // guarded by mutex
  int running = 0;                          // guarded by mutex
  bool ending = false;                      // guarded by mutex
  std::vector<std::thread> threads;

  void run(int nice) {
    give_way(nice);
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return ending || !tasks.empty(); });
      if (ending) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      ++running;
      lock.unlock();
      task();
      task = nullptr;  // releases its captures before anyone sees the pool idle
      lock.lock();
      if (--running == 0 && tasks.empty()) idle.notify_all();
    }
  }

  void end() {
    {
      std::lock_guard lock(mutex);
      ending = true;
      tasks.clear();
    }
    work.notify_all();
    for (auto& thread : threads) thread.join();
  }
};

ThreadPool::ThreadPool(int threads, const std::string& name, int nice)
    : state_(std::make_unique<State>()) {
  state_->threads.reserve(size_t(threads));
  for (int i = 0; i < threads; ++i) {
    try {
      state_->threads.emplace_back([state = state_.get(), nice] { state->run(nice); });
    } catch (...) {
      state_->end();  // destroying a joinable thread would terminate the process
      fail_threads(i + 1, threads, name);
    }
    pthread_setname_np(state_->threads.back().native_handle(), name.substr(0, 15).c_str());
  }
}

ThreadPool::~ThreadPool() {
  state_->end();
}

void ThreadPool::submit(std::function<void()> task) {
  {
    std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->work.notify_one();
}

void ThreadPool::wait_idle() {
  std::unique_lock lock(state_->mutex);
  state_->idle.wait(lock, [&] { return state_->tasks.empty() && state_->running == 0; });
}

int ThreadPool::size() const {
  return int(state_->threads.size());
}

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr error;    // guarded by mutex
  size_t error_index = count;  // guarded by mutex
  const auto work = [&] {
    for (size_t i; !failed && (i = next++) < count;) {
      try {
        body(i);
      } catch (...) {
        failed = true;
        std::lock_guard lock(mutex);
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
