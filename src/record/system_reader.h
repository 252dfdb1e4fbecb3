// System statistics of this process and its network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "saturate/data/env.h"
#include "saturate/observer.h"

namespace saturate {

// CPU time of all threads of this process.
double cpu_seconds();

struct StorageBytes {
  int64_t read = 0, written = 0;
};
// Parses /proc/PID/io (proc(5)): read_bytes and write_bytes, which count storage accesses, not the
// page cache. Empty if either is missing.
std::optional<StorageBytes> parse_proc_io(const std::string& text);

struct NetworkBytes {
  int64_t received = 0, sent = 0;
};
// Parses /proc/net/dev (proc(5)): all interfaces but "lo". Empty if no interface is listed.
std::optional<NetworkBytes> parse_net_dev(const std::string& text);

// Second field of /proc/PID/statm times the page size.
std::optional<int64_t> parse_statm(const std::string& text, int64_t page_bytes);

// Belongs to one thread. `env` is used for time only: /proc files have no size, which Env needs.
class SystemReader {
 public:
  explicit SystemReader(Env& env, std::string proc = "/proc");
  // Rates are means since the last call, or since construction. Unreadable values are empty.
  Telemetry read();

 private:
  struct Counters {
    int64_t time_ns;
    double cpu_s;
    std::optional<StorageBytes> storage;
    std::optional<NetworkBytes> network;
  };
  Counters count() const;

  Env& env_;
  const std::string proc_;
  Counters last_;
};

}  // namespace saturate
