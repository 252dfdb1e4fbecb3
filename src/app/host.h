// The machine and the build, for results that are to be compared.
#pragma once

#include <cstdint>
#include <string>

namespace saturate {

struct Host {
  std::string cpu;     // "n/a" where the system does not say
  std::string system;  // kernel and architecture
  int cores;           // that this process may use
  int64_t memory_bytes;
};

Host this_host();

// The commit that was configured to build, with "-dirty" where files differed; "unknown" outside
// git.
std::string build_commit();

}  // namespace saturate
