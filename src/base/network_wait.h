// Reports when a thread waits for bytes of a store, without the store knowing who is interested.
#pragma once

#include <functional>

namespace saturate {

// Called on the waiting thread: with true when a wait begins, with false when it ends.
using NetworkWaitListener = std::function<void(bool waits)>;

// Sets the listener of this thread while this exists.
class NetworkWaitScope {
 public:
  explicit NetworkWaitScope(NetworkWaitListener listener);
  ~NetworkWaitScope();
  NetworkWaitScope(const NetworkWaitScope&) = delete;
  NetworkWaitScope& operator=(const NetworkWaitScope&) = delete;

 private:
  NetworkWaitListener before_;
};

// Marks a wait for a store, from construction to destruction, on one thread. Waits do not nest.
class NetworkWait {
 public:
  NetworkWait();
  ~NetworkWait();
  NetworkWait(const NetworkWait&) = delete;
  NetworkWait& operator=(const NetworkWait&) = delete;
};

}  // namespace saturate
