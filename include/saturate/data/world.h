// SPDX-License-Identifier: BSD-3-Clause
// The rank of a process in a distributed run, as its launcher announces it, and such runs' options.
#pragma once

#include <functional>
#include <string>

namespace saturate {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0;  // among the processes of this machine
  int local_size = 0;  // number of processes on this machine; 0: unknown
  // Where rank 0 listens; empty without other processes.
  std::string master;
  int port = 0;
  // A TCPStore listens there already, such as torchrun's agent's.
  bool store_elsewhere = false;
  int attempt = 0;      // restarts so far
  std::string told_by;  // "torchrun's variables", ...; empty: none
};

// A variable's value, or null.
using Lookup = std::function<const char*(const char* name)>;

// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun, `saturate launch`) or,
// if they are not set, the variables of mpirun and srun, which need MASTER_ADDR too with several
// machines, and use MASTER_PORT (default 29500). Fails with kUsage naming the variable that is
// missing, not a number, or contradicts another.
World parse_world(const Lookup& lookup);
// For this process.
World this_world();

// Processes with one device each, or one process with several devices (distributed.mode).
enum class ParallelMode { kDdp, kDp };
enum class CollectiveBackend { kAuto, kGloo, kNccl };
// Gradient compression for transfer: rounding, or low-rank factors.
enum class Compress { kNone, kBf16, kFp16, kPowerSgd };
// Handling of samples that do not divide evenly among the processes; see rank_order().
enum class Uneven { kJoin, kPad, kDrop };

struct DistributedOptions {
  ParallelMode mode = ParallelMode::kDdp;
  CollectiveBackend backend = CollectiveBackend::kAuto;
  double bucket_mb = 25;   // MiB
  double timeout_s = 300;  // seconds
  Compress compress = Compress::kNone;
  int powersgd_rank = 4;  // rank of the factors
  Uneven uneven = Uneven::kJoin;
  bool find_unused = false;
  bool sync_bn = false;
  bool shard_optimizer = false;
};

}  // namespace saturate
