#include "base/wall_clock.h"

#include <time.h>

namespace saturate {

int64_t unix_time_ns(Env& env) {
  if (auto* clock = dynamic_cast<WallClock*>(&env)) return clock->unix_ns();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace saturate
