// Cancelling long work, mostly waits for a store that does not answer: a thread polls the test that
// was set for it, and its work fails once the test returns true.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace saturate {

// True cancels. Safe for concurrent use: threads that work for one another share it.
using CancelTest = std::function<bool()>;

// The test of this thread while this exists.
class CancelScope {
 public:
  explicit CancelScope(CancelTest test);
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  CancelTest before_;
};

// The test of this thread, for the scopes of threads that work for it; may be empty.
const CancelTest& cancel_test();
bool is_cancelled();
// Fails with kRun and this reason, naming what was waited for.
[[noreturn]] void fail_cancelled(const std::string& where);
inline constexpr const char* kCancelledWait = "the wait was cancelled";

// How long a thread waits between two looks at its test.
constexpr std::chrono::milliseconds kCancelLook{50};

}  // namespace saturate
