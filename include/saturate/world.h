// A process's place among those that train together, as whoever started them tells it.
#pragma once

#include <functional>
#include <string>

namespace saturate {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0;  // among the processes of this machine
  int local_size = 0;  // how many they are; 0: unknown
  // Where rank 0 listens; empty where there is no other process.
  std::string master;
  int port = 0;
  // A TCPStore listens there already, as torchrun's agent has one.
  bool store_elsewhere = false;
  int attempt = 0;      // restarts so far
  std::string told_by;  // "torchrun's variables", ...; empty: nobody
};

// A variable's value, or null.
using Lookup = std::function<const char*(const char* name)>;

// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun, `saturate launch`) or,
// where they are not set, mpirun's and srun's own variables, which need MASTER_ADDR beside them
// where there are several machines, and take MASTER_PORT (default 29500). Fails with kUsage naming
// the variable that is missing, is no number, or contradicts another.
World parse_world(const Lookup& lookup);
// Of this process.
World this_world();

}  // namespace saturate
