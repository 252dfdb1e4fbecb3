// Coordination of a run's launchers, one per machine, each of which supervises its own processes.
// They exchange which attempt this is and where rank 0's store listens, that it failed on one
// machine and must end on all, and whether another follows. Node 0's launcher listens at the
// master's address and decides; the others stay connected to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reduce/rank_process.h"
#include "saturate/data/error.h"
#include "saturate/launcher.h"

namespace saturate {

// How an attempt ended, on one machine or on all.
struct Ending {
  bool failed = false;
  bool followed = false;  // only because another process had ended
  int signal = 0;         // that ended the process, or 0
  int node = 0;           // on which machine
  ErrorKind kind = ErrorKind::kRun;
  std::string what = {}, where = {};
};

// The kind whose exit code this is; kRun for any other code.
inline ErrorKind kind_of_code(int code) {
  const bool known = code == int(ErrorKind::kUsage) || code == int(ErrorKind::kData);
  return known ? ErrorKind(code) : ErrorKind::kRun;
}

struct Start {
  int number;                 // restarts so far
  int port;                   // of rank 0's store
  Descriptor listening = {};  // that port's socket, for rank 0 to inherit; on node 0 only
};

struct Verdict {
  Ending ending;
  std::string restart;  // label of the restart that follows, "1 of 3"; empty: none
};

class Nodes {
 public:
  virtual ~Nodes() = default;

  // The next attempt; waits until node 0 starts it. Empty if a signal came meanwhile.
  virtual std::optional<Start> start() = 0;
  // To be polled for reading, then handled by hear().
  virtual std::vector<int> descriptors() const = 0;
  // Handles pending messages, without waiting.
  virtual void hear() = 0;
  // Whether the attempt has failed, on any machine.
  virtual bool failed() const = 0;
  // Reports that it has failed on this one.
  virtual void tell_failed() = 0;
  // Once this machine's processes have ended: waits for the others', and returns the first failure
  // on any machine that was not a consequence of another.
  virtual Verdict judge(const Ending& own) = 0;
};

// Fails with kUsage if node 0 cannot listen. With one machine it opens no connection.
std::unique_ptr<Nodes> make_nodes(const LaunchOptions& options,
                                  const std::function<int()>& stop_signal);

}  // namespace saturate
