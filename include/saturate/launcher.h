// Starts the processes of a run on this machine, and looks after them.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace saturate {

struct LaunchOptions {
  int processes = 1;        // on this machine
  int nodes = 1, node = 0;  // machines, and which of them this is
  // Where rank 0 listens; of several machines, where node 0's launcher does, and rank 0 at another
  // port of this address.
  std::string master = "127.0.0.1";
  int port = 0;         // 0: one that is free; with one machine alone
  int restarts = 0;     // of all processes, when one fails, at most; node 0's counts
  double meet_s = 300;  // for node 0's launcher to answer
  double stall_s = 60;  // without a step, after which it is said
  double grace_s = 15;  // for the others to end by themselves once one has failed
  std::string program;  // run for each rank, with
  std::vector<std::string> arguments;
};

// Runs until all processes have ended; gives 0, or the code of a run that a signal stopped (130,
// 143). When one fails, names it with its last lines, ends the others, and starts all again
// from the last checkpoint (as `saturate train` does where SATURATE_RESTART_FOLDER is set) while
// restarts are left and the failure is no usage or data error, which would only come again; then
// fails with the kind of its exit code. `stop_signal`: the signal to pass on so far, or 0.
//
// Of several machines, each has a launcher, and all do the same: when a process fails, or a
// launcher is gone, all machines' processes are ended, and started again together; each call fails
// alike.
//
// A process that does not heed the signal within five times `stall_s`, and does not move, is
// killed. The processes cannot outlive the launcher: the system kills them with it.
int launch(const LaunchOptions& options, const std::function<int()>& stop_signal);

}  // namespace saturate
