#include "base/cancel.h"

#include <utility>

#include "saturate/data/error.h"

namespace saturate {
namespace {

CancelTest& own_test() {
  static thread_local CancelTest test;
  return test;
}

}  // namespace

CancelScope::CancelScope(CancelTest test) : before_(std::exchange(own_test(), std::move(test))) {}

CancelScope::~CancelScope() {
  own_test() = std::move(before_);
}

const CancelTest& cancel_test() {
  return own_test();
}

bool is_cancelled() {
  const CancelTest& test = own_test();
  return test && test();
}

void fail_cancelled(const std::string& where) {
  fail(ErrorKind::kRun, kCancelledWait, where, "Run it again");
}

}  // namespace saturate
