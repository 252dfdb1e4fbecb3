// The network link to a store, measured by its requests, and what would make reading faster.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "store/store_tuning.h"

namespace saturate {

struct LinkUse {
  double bytes_per_s = 0, requests_per_s = 0;
  double first_byte_s = 0, late_first_byte_s = 0;  // of recent requests: median, 95th percentile
  double disk_share = 0;                           // of the bytes read: from the cache on disk
  double waiting = 0;    // share of the requests' time before their first byte
  double disk_rate = 0;  // bytes/s of one reader of the cache; 0: unknown
  bool can_keep = true;  // a cache on disk can: all objects have a strong ETag or a date
  uint64_t cache_used = 0, cache_budget = 0;  // see StoreCounts
  // Speedups of reading that waits for the network, with as many requests at a time:
  double large_requests = 1;  // of neighbours that are read by one request
  double half_bytes = 1;      // of as many requests for half the bytes; more on a link that is full
  // A cache that serves twice as many bytes, or half of them if it serves none; and all. At most
  // until one reader of the cache on disk is the limit, if its rate is known.
  double larger_cache = 1, whole_cache = INFINITY;
  // These are not in the counts:
  double crop_share = 1;   // of the bytes of JPEGs and others that are not in segments: for crops
  bool is_packed = false;  // samples are neighbours in their objects
  bool in_random_order = true;  // over the whole source
  double network_share = 1;     // of the loader's time: its working threads wait for the network
  double most = INFINITY;       // the speedup of the run without any wait for the loader
};

// The speedup of packing images in segments, of which the crops need crop_share in two requests.
double segments_speedup(const LinkUse& link);
// The speedup of the run, if reading from the network becomes so much faster (G. M. Amdahl, 1967).
double run_speedup(const LinkUse& link, double speedup);

// Adds the counts from one look at a store until another.
void add_use(StoreCounts& sum, const StoreCounts& before, const StoreCounts& after);
LinkUse link_use(const StoreCounts& use, double seconds);
// The use from one look at the counts until another, `seconds` later.
LinkUse link_use(const StoreCounts& before, const StoreCounts& after, double seconds);

// Bytes that a request of these counts received, once they came, in the least time until a first
// byte: the others also waited for each other's bytes on a full link. UINT64_MAX if nothing is
// known.
uint64_t bytes_while_waiting(const StoreCounts& counts);

// How long replies take on a link.
struct LinkPace {
  uint64_t bytes_while_waiting;  // as above
  double least_first_byte_s;     // of all requests so far
};

// "12.3 MB/s in 410 requests/s; first byte after 18.0 ms (median), 55.0 ms (95th percentile); ...".
std::string link_text(const LinkUse& link);
// Changes to try, with their speedups of the run, a line each; or that the network is not the
// limit.
std::vector<std::string> link_advice(const LinkUse& link);

}  // namespace saturate
