// The time of day, which file names and records for other programs need. Durations are measured by
// Env::now_ns() alone.
#pragma once

#include <cstdint>

#include "saturate/env.h"

namespace saturate {

// What an Env of a test can be besides, to choose the time of day.
class WallClock {
 public:
  virtual ~WallClock() = default;
  virtual int64_t unix_ns() = 0;
};

// Nanoseconds since 1970: those of `env` where it is a WallClock, else the system's.
int64_t unix_time_ns(Env& env);

}  // namespace saturate
