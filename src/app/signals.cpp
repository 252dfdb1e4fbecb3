#include <signal.h>
#include <unistd.h>

#include "app/command.h"

namespace saturate {
namespace {

constexpr int kInterruptedExit = 130;  // the contract's, after SIGINT

volatile sig_atomic_t noted_signal = 0;
bool on_terminal = false;  // where a bar, and ^C over it, may stand in the line

extern "C" void note_signal(int signal) {
  // Nothing but async-signal-safe calls here.
  if (noted_signal != 0 && signal == SIGINT) _exit(kInterruptedExit);
  if (noted_signal == 0) noted_signal = signal == SIGUSR1 ? SIGTERM : signal;
  static const char erase[] = "\r\x1b[K";
  static const char message[] = "saturate: stopping after this step; Ctrl-C again leaves at once\n";
  if (on_terminal && write(STDERR_FILENO, erase, sizeof erase - 1) < 0) return;
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) return;
}

}  // namespace

void catch_stop_signals() {
  on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);  // SLURM's before it takes a job's nodes
  sigaction(SIGUSR1, &action, nullptr);  // what `sbatch --signal=USR1@60` asks for
}

int stop_signal() {
  return noted_signal;
}

}  // namespace saturate
