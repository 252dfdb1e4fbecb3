// Tells whom a thread works for that the thread waits for a store's bytes.
#pragma once

#include <functional>

namespace saturate {

// Called on the waiting thread: with true when a wait begins, with false when it ends.
using NetworkWaitListener = std::function<void(bool waits)>;

// The listener of this thread while this exists.
class NetworkWaitScope {
 public:
  explicit NetworkWaitScope(NetworkWaitListener listener);
  ~NetworkWaitScope();
  NetworkWaitScope(const NetworkWaitScope&) = delete;
  NetworkWaitScope& operator=(const NetworkWaitScope&) = delete;

 private:
  NetworkWaitListener before_;
};

// This thread waits for a store while this exists. Waits do not nest.
class NetworkWait {
 public:
  NetworkWait();
  ~NetworkWait();
  NetworkWait(const NetworkWait&) = delete;
  NetworkWait& operator=(const NetworkWait&) = delete;
};

}  // namespace saturate
