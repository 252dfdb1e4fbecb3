// A process's place among those that train together, as whoever started them tells it.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

// Divides `cpus` into `parts` lists, as equal as can be, cores whole and those of one socket
// together where that goes; gives the one of `part`. All of `cpus` where they are fewer than parts.
struct Cpu {
  int id = 0, core = 0, socket = 0;
};
std::vector<int> cpus_of_part(std::vector<Cpu> cpus, int part, int parts);

// Binds this process, and the threads that it makes from here on, to its part of the processors
// that it may use. Does nothing where somebody else has taken some of the machine's away from it,
// unless `inherited`: the processes share what they may use.
void bind_cpus(const World& world, bool inherited);
// Leaves this process one of the GPUs that it may see, by its local rank, unless it sees no more
// than one already. REQUIRES: nothing has asked for a GPU yet.
void bind_gpu(const World& world);

}  // namespace saturate
