#include <signal.h>
#include <unistd.h>

#include "app/command.h"

namespace saturate {
namespace {

volatile sig_atomic_t noted_signal = 0;

extern "C" void note_signal(int signal) {
  // The contract's exit code for an interrupt; nothing but async-signal-safe calls here.
  if (noted_signal == SIGINT && signal == SIGINT) _exit(130);
  noted_signal = signal;
  static const char message[] =
      "\nsaturate: stopping after this step; Ctrl-C again leaves at once\n";
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) return;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() {
  return noted_signal;
}

}  // namespace saturate
