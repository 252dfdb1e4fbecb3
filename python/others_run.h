// SPDX-License-Identifier: BSD-3-Clause
// Releasing Python's lock on threads that may still wait when Python ends.
#pragma once

#include <nanobind/nanobind.h>

namespace saturate {

// Releases Python's lock while it exists. Other threads than the one that called begin_exit() then
// stay in the destructor: before Python 3.14, a thread that takes the lock while Python ends is
// ended by an unwinding, which no destructor survives.
class OthersRun {
 public:
  OthersRun() {}
  ~OthersRun();
  OthersRun(const OthersRun&) = delete;
  OthersRun& operator=(const OthersRun&) = delete;

 private:
  struct Away {
    Away();
    ~Away();
  };
  const Away away_;  // while the lock is not held
  const nanobind::gil_scoped_release released_;
};

// Python ends soon, on this thread, which has its lock. Waits for those that take the lock just
// now, a second at most.
void begin_exit();

}  // namespace saturate
