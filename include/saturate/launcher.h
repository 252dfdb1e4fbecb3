// SPDX-License-Identifier: BSD-3-Clause
// Starts and supervises the processes of a run on this machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace saturate {

struct LaunchOptions {
  int processes = 1;        // on this machine
  int nodes = 1, node = 0;  // number of machines, and index of this one
  // Where rank 0 listens; with several machines, where node 0's launcher listens (rank 0 uses
  // another port of this address).
  std::string master = "127.0.0.1";
  int port = 0;               // 0: a free one; single machine only
  int restarts = 0;           // maximum number, of all processes, when one fails; node 0's counts
  double rendezvous_s = 300;  // timeout for node 0's launcher
  double stall_s = 60;        // without a step, before it is reported
  double grace_s = 15;        // for the others to end by themselves once one has failed
  std::string program;        // run for each rank, with
  std::vector<std::string> arguments;
};

// Runs until all processes have ended; returns 0, or the code of a run stopped by a signal (130,
// 143). When one fails, reports it with its last lines, ends the others, and restarts all from the
// last checkpoint (as `saturate train` does if SATURATE_RESTART_FOLDER is set) while restarts are
// left and the failure is not a usage or data error, which would recur; then fails with the kind of
// its exit code. `stop_signal`: the signal to forward so far, or 0.
//
// With several machines, each has a launcher, and all do the same: when a process fails, or a
// launcher is lost, all machines' processes are ended and restarted together; all calls fail in the
// same way.
//
// A process that neither handles the signal nor makes progress within five times `stall_s` is
// killed. The processes cannot outlive the launcher: the system kills them with it.
int launch(const LaunchOptions& options, const std::function<int()>& stop_signal);

}  // namespace saturate
