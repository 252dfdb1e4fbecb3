#include "saturate/norm_hook.h"

#include <utility>

namespace saturate {
namespace {

thread_local NormHook* current = nullptr;

}  // namespace

NormHook* set_norm_hook(NormHook* hook) {
  return std::exchange(current, hook);
}

NormHook* norm_hook() {
  return current;
}

}  // namespace saturate
