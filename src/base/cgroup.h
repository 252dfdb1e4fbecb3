// The limits of the control groups (cgroup v2 or v1) that hold this process, from its own to the
// outermost: each limits all below it. SLURM and systemd give a job its own; a container sees only
// its outermost.
#pragma once

#include <cstdint>
#include <string>

namespace saturate {

// In bytes; UINT64_MAX without a limit.
struct CgroupMemory {
  uint64_t limit = UINT64_MAX;
  uint64_t left = UINT64_MAX;  // of the limit that leaves the least
};

CgroupMemory cgroup_memory(const std::string& membership = "/proc/self/cgroup",
                           const std::string& root = "/sys/fs/cgroup");
// The least quota of processor time, as whole cores; 0 without one.
int cgroup_cores(const std::string& membership = "/proc/self/cgroup",
                 const std::string& root = "/sys/fs/cgroup");

}  // namespace saturate
