// Signals and messages that c10d must not cause in its process.
#pragma once

#include <c10/util/Logging.h>
#include <signal.h>

#include <cstdlib>
#include <mutex>

namespace saturate {

// Threads created in its lifetime block SIGPIPE: the store's and Gloo's write to sockets of
// processes that may have ended, which would silently kill this process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0)
      while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

// c10d logs each lost connection with a stack trace; Group reports the failure in one line.
// TORCH_CPP_LOG_LEVEL shows the log.
inline void silence_c10d() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
    c10::initLogging();
  });
}

}  // namespace saturate
