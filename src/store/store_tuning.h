// Numbers of a store that recipes do not set.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace saturate {

struct StoreTuning {
  uint64_t ahead_bytes = 128 << 20;  // announced bytes being fetched or held, at most
  int ahead_requests = 32;           // requests for announced bytes at a time, at first
  int most_ahead_requests = 256;     // ... and at most
  uint64_t merged_bytes = 4 << 20;   // announced ranges become one request up to this size
  uint64_t merged_gap = 4 << 10;     // ... and if no more than this lies between them
  bool adapts = true;  // ahead_requests and merged_bytes follow the link, as measured so far
  uint64_t read_bytes = 16 << 20;  // a longer read is divided
  uint64_t part_bytes = 32 << 20;  // uploaded in one request; S3 wants 5 MiB or more
  double first_backoff_s = 0.1, most_backoff_s = 5;
  double second_least_s = 0.1;              // earliest second request for a range
  int stall_s = 20;                         // without a byte, before a transfer counts as failed
  uint64_t pending_cache_bytes = 64 << 20;  // waiting to be written to the disk
  // ReadableFile::request_bytes(); empty: measured.
  std::optional<uint64_t> request_bytes = {};
};

// Counts of a store's work so far.
struct StoreCounts {
  uint64_t requests = 0;      // ranges asked for, without further attempts
  uint64_t bytes = 0;         // of those, received
  uint64_t retries = 0;       // further attempts after failures
  uint64_t second = 0;        // second requests for ranges that were late
  uint64_t disk_hits = 0;     // reads served by the cache on disk
  uint64_t disk_bytes = 0;    // of those reads
  double disk_s = 0;          // sum over them
  uint64_t disk_damaged = 0;  // entries of it that were damaged
  // Sums over requests that succeeded, seconds: from sending one until its end, and until its first
  // byte; and the latter of the last requests.
  double request_s = 0, waiting_s = 0;
  double least_first_byte_s = INFINITY;  // the least of all requests
  std::vector<double> first_bytes_s = {};
  bool has_unknown = false;  // an object has no strong ETag and no date: no cache keeps it
  uint64_t ahead_bytes = 0;  // as of StoreTuning
  uint64_t cache_used = 0, cache_budget = 0;  // bytes of the cache on disk; without one 0
};

}  // namespace saturate
