// The control groups (cgroup v2) that limit this process.
#pragma once

#include <string>
#include <vector>

namespace saturate {

// The folders with their files (cpu.max, memory.max), from the process's own to the outermost: each
// limits all below it. SLURM and systemd give a job its own; a container sees only its outermost.
std::vector<std::string> cgroup_folders(const std::string& membership = "/proc/self/cgroup",
                                        const std::string& root = "/sys/fs/cgroup");

}  // namespace saturate
