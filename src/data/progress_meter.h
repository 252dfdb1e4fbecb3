// Serialises and throttles a progress callback's calls.
#pragma once

#include <algorithm>

#include "base/mutex.h"
#include "data/inspect.h"

namespace saturate {

// Safe for concurrent use.
class ProgressMeter {
 public:
  // `callback` must outlive this and may be empty.
  ProgressMeter(const ProgressCallback& callback, size_t total)
      : callback_(callback),
        total_(total),
        every_(std::clamp<size_t>(total / 200, 1, kMostApart)) {}

  void add_one() {
    if (!callback_) return;
    const MutexLock lock(mutex_);
    ++done_;
    if (done_ % every_ == 0 || done_ == total_) callback_(done_, total_);
  }

 private:
  static constexpr size_t kMostApart = 64;  // about a second of slow work
  const ProgressCallback& callback_;
  const size_t total_, every_;
  Mutex mutex_;
  size_t done_ GUARDED_BY(mutex_) = 0;
};

}  // namespace saturate
