// Finds mistakes in the program's use of streams at run time: a StreamChecker receives the streams,
// events, copies and launches of the fake CUDA runtime, the memory that torch's allocator allocates
// and frees, and the memory that torch's operators read and write, by their schemas.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace saturate::testing {

// Active while it exists, one at a time in the process. Meanwhile events are reported done one
// query late, so that a query by the host does not replace a wait.
class StreamWatch {
 public:
  StreamWatch();
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // Each once: the mistake, and the functions of the program that led to it. Clears them.
  std::vector<std::string> take_findings();
  // Memory allocated since the watch began and not freed: bytes, and the caller.
  std::vector<std::string> held() const;
  // Number of memory accesses that it received.
  int64_t uses() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate::testing
