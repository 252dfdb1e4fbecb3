// The machine and the build, for results that are to be compared.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace saturate {

struct Host {
  std::string cpu;     // "n/a" where the system does not say
  std::string system;  // kernel and architecture
  int cores;           // that this process may use
  int64_t memory_bytes;
};

Host this_host();

// That this build can use.
int gpu_count();

// The commit that was configured to build, with "-dirty" where files differed; "unknown" outside
// git.
std::string build_commit();

// Names and values of everything that `saturate env` prints.
std::vector<std::pair<std::string, std::string>> host_facts();

// The same as one JSON object of texts: host.json in a run's folder.
std::string host_json();

}  // namespace saturate
