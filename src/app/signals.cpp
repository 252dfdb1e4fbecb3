#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string_view>

#include "app/command.h"

namespace saturate {
namespace {

constexpr int kInterruptedExit = 130;  // part of the exit code contract, for SIGINT

volatile sig_atomic_t noted_signal = 0, has_hung_up = 0;
bool on_terminal = false;  // a progress bar or ^C may be on the line
bool is_terminal[3];       // by descriptor
const char* stop_message = "";
size_t stop_message_size = 0;

// The terminal is gone: writing to it would fail.
void leave_terminal() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd)
    if (is_terminal[fd]) dup2(null, fd);
}

extern "C" void note_signal(int signal) {
  // Only async-signal-safe calls here.
  if (noted_signal != 0 && signal == SIGINT) _exit(kInterruptedExit);
  if (signal == SIGHUP) leave_terminal();
  if (noted_signal == 0 && signal == SIGHUP) has_hung_up = 1;
  if (noted_signal == 0) noted_signal = signal == SIGINT ? SIGINT : SIGTERM;
  static const char erase[] = "\r\x1b[K";
  if (on_terminal && write(STDERR_FILENO, erase, sizeof erase - 1) < 0) return;
  if (write(STDERR_FILENO, stop_message, stop_message_size) < 0) return;
}

void catch_signals(std::string_view text) {
  stop_message = text.data();
  stop_message_size = text.size();
  for (int fd = 0; fd < 3; ++fd) is_terminal[fd] = isatty(fd) == 1;
  on_terminal = is_terminal[STDERR_FILENO];
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);  // SLURM sends it before it ends a job
  sigaction(SIGUSR1, &action, nullptr);  // as requested by `sbatch --signal=USR1@60`
  // Who reads the output, such as tee, may end by the same Ctrl-C: the run is to be saved first.
  signal(SIGPIPE, SIG_IGN);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
}

}  // namespace

void catch_stop_signals() {
  catch_signals("saturate: stopping after this step; Ctrl-C again leaves at once\n");
}

void catch_stop_signals_of_writing() {
  catch_signals("saturate: stopping, and removing what was begun; Ctrl-C again leaves at once\n");
}

int stop_signal() {
  return noted_signal;
}

int signal_to_pass_on() {
  return has_hung_up != 0 ? SIGHUP : noted_signal;
}

}  // namespace saturate
