// The machine and the build, to make results comparable.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace saturate {

struct Host {
  std::string cpu;     // "n/a" if unknown
  std::string system;  // kernel and architecture
  int cores;           // available to this process
  int64_t memory_bytes;
};

Host this_host();

// Whether the CPU supports bf16 natively (AVX-512 BF16 or AMX); otherwise it is slower than fp32.
bool cpu_has_bf16();

// GPUs that this build can use.
int gpu_count();

// The commit at configure time, with "-dirty" if files differed; "unknown" outside git.
std::string build_commit();

// Names and values of everything that `saturate env` prints.
std::vector<std::pair<std::string, std::string>> host_facts();

// The same as one JSON object of texts: host.json in a run's folder.
std::string host_json();

}  // namespace saturate
