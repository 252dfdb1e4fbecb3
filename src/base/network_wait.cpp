#include "base/network_wait.h"

#include <utility>

namespace saturate {
namespace {

NetworkWaitListener& own_listener() {
  static thread_local NetworkWaitListener listener;
  return listener;
}

void tell_listener(bool waits) {
  if (const NetworkWaitListener& listener = own_listener()) listener(waits);
}

}  // namespace

NetworkWaitScope::NetworkWaitScope(NetworkWaitListener listener)
    : before_(std::exchange(own_listener(), std::move(listener))) {}

NetworkWaitScope::~NetworkWaitScope() {
  own_listener() = std::move(before_);
}

NetworkWait::NetworkWait() {
  tell_listener(true);
}

NetworkWait::~NetworkWait() {
  tell_listener(false);
}

}  // namespace saturate
