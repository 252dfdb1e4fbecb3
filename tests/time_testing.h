// For tests that depend on measured time, which a busy machine can make fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#define SATURATE_NEEDS_TIME()                    \
  if (std::getenv("SATURATE_FAULTS") == nullptr) \
  GTEST_SKIP() << "compares times: run it by `make faults` on a quiet machine"
