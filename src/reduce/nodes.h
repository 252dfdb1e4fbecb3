// The launchers of a run's machines, each of which looks after its own processes, and what they
// tell each other: which attempt it is and where rank 0's store listens in it, that it has failed
// on one machine and is to end on all, and whether another follows. Node 0's launcher listens at
// the master's address, and decides; the others stay connected to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reduce/rank_process.h"
#include "saturate/error.h"
#include "saturate/launcher.h"

namespace saturate {

// How an attempt ended, on one machine or on all.
struct Ending {
  bool failed = false;
  bool followed = false;  // only since another process was gone
  int signal = 0;         // that ended the process, or 0
  int node = 0;           // where
  ErrorKind kind = ErrorKind::kRun;
  std::string what, where;
};

struct Start {
  int number;                 // restarts so far
  int port;                   // of rank 0's store
  Descriptor listening = {};  // there, for rank 0 to inherit; on node 0 alone
};

struct Verdict {
  Ending ending;
  std::string restart;  // "1 of 3": which one follows; empty: none
};

class Nodes {
 public:
  virtual ~Nodes() = default;

  // The next attempt; waits for node 0 to begin it. Nothing where a signal came meanwhile.
  virtual std::optional<Start> start() = 0;
  // To be polled for reading, and then heard.
  virtual std::vector<int> descriptors() const = 0;
  // Takes what has come, without waiting.
  virtual void hear() = 0;
  // Whether the attempt has failed, on any machine.
  virtual bool failed() const = 0;
  // That it has, on this one.
  virtual void tell_failed() = 0;
  // Once this machine's processes have ended: waits for the others', and gives what failed first
  // by itself on any of them.
  virtual Verdict judge(const Ending& own) = 0;
};

// Fails with kUsage where node 0 cannot listen. Of one machine it says nothing to anybody.
std::unique_ptr<Nodes> make_nodes(const LaunchOptions& options,
                                  const std::function<int()>& stop_signal);

}  // namespace saturate
