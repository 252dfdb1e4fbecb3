#include "others_run.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace saturate {
namespace {

using std::chrono::milliseconds;

std::thread::id exiting;  // set before `exits`
std::atomic<bool> exits{false};
std::atomic<int> away{0};          // threads that have released the lock, and will take it
const pid_t process = ::getpid();  // a forked one has the count, but not the threads

}  // namespace

OthersRun::Away::Away() {
  ++away;
}
OthersRun::Away::~Away() {
  --away;
}

// A program's own atexit function may wait for the thread: so it returns after five seconds, unless
// Python has begun to end.
OthersRun::~OthersRun() {
  if (!exits || std::this_thread::get_id() == exiting) return;
  --away;
  for (int looks = 0; looks < 250 && Py_IsInitialized(); ++looks)
    std::this_thread::sleep_for(milliseconds(20));
  while (!Py_IsInitialized()) ::pause();
  ++away;
}

void begin_exit() {
  exiting = std::this_thread::get_id();
  exits = true;
  const nanobind::gil_scoped_release others_run;
  for (int looks = 0; looks < 1000 && away > 0 && ::getpid() == process; ++looks)
    std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace saturate
