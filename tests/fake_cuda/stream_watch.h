// Finds mistakes in the program's use of streams by what it does: a StreamChecker receives the
// streams, events, copies and launches that the fake CUDA runtime sees, of what torch's allocator
// gives and takes back, and of the memory that torch's operators read and write by their schemas.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace saturate::testing {

// From its making to its end, one at a time in the process. Events are told to be done one query
// late meanwhile, so that what the host learns by asking does not stand in for waits.
class StreamWatch {
 public:
  StreamWatch();
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // Each once: what, and the functions of the program that led there. Clears them.
  std::vector<std::string> take_findings();
  // Memory given since the watch began and not taken back: bytes, and who asked for it.
  std::vector<std::string> held() const;
  // Uses of memory that it was told of.
  int64_t uses() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate::testing
