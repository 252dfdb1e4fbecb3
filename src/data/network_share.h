// The network's part of the time that the loader's consumer waits for a batch: at each moment the
// fraction of the working loader threads that wait for bytes of a store. Never more than the wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace saturate {

// Not safe for concurrent use. Call each method before the state that it names changes. `working`:
// threads with samples to fill, until `now`, which never decreases.
class NetworkShare {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void set_consumer_waits(bool waits, size_t working, Time now) {
    add(working, now);
    waits_ = waits;
  }
  // One more, or one less, of the working threads waits for a store.
  void set_blocked(bool more, size_t working, Time now) {
    add(working, now);
    blocked_ += more ? 1 : -1;
  }
  // Whether add() must be called before the number of working threads changes.
  bool counts() const { return waits_ && blocked_ > 0; }
  void add(size_t working, Time now) {
    if (counts()) sum_ += (now - since_) * blocked_ / std::max(int64_t(working), blocked_);
    since_ = now;
  }

  std::chrono::nanoseconds sum() const { return sum_; }

 private:
  bool waits_ = false;
  int64_t blocked_ = 0;
  Time since_;  // of the last call
  std::chrono::nanoseconds sum_{0};
};

}  // namespace saturate
