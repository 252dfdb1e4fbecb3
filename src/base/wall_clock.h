// The time of day, for file names and records for other programs. Durations are measured by
// Env::now_ns() only.
#pragma once

#include <time.h>

#include <cstdint>

#include "saturate/data/env.h"

namespace saturate {

// Additional base of a test's Env, to set the time of day.
class WallClock {
 public:
  virtual ~WallClock() = default;
  virtual int64_t unix_ns() = 0;
};

// Nanoseconds since 1970: from `env` if it is a WallClock, else from the system.
inline int64_t unix_time_ns(Env& env) {
  if (auto* clock = dynamic_cast<WallClock*>(&env)) return clock->unix_ns();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace saturate
