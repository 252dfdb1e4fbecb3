// The time of day, for file names and records for other programs. Durations are measured by
// Env::now_ns() only.
#pragma once

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
int64_t unix_time_ns(Env& env);

}  // namespace saturate
