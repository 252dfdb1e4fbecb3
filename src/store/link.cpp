#include "store/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace saturate {
namespace {

constexpr double kWorth = 1.1;  // a speedup that is named

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + ptrdiff_t(double(values.size() - 1) * share);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

LinkUse link_use(const StoreCounts& before, const StoreCounts& after, double seconds) {
  LinkUse link;
  const double bytes = double(after.bytes - before.bytes);
  const double on_disk = double(after.disk_bytes - before.disk_bytes);
  const uint64_t requests = after.requests - before.requests;
  link.bytes_per_s = ratio(bytes, seconds);
  link.requests_per_s = ratio(double(requests), seconds);
  std::vector<double> first_bytes = after.first_bytes_s;  // with those of earlier requests
  if (first_bytes.size() > requests)
    first_bytes.erase(first_bytes.begin(), first_bytes.end() - ptrdiff_t(requests));
  link.first_byte_s = quantile(first_bytes, 0.5);
  link.late_first_byte_s = quantile(std::move(first_bytes), 0.95);
  link.disk_share = ratio(on_disk, on_disk + bytes);
  const double whole = after.request_s - before.request_s;
  const double waiting = ratio(after.waiting_s - before.waiting_s, whole);
  if (whole <= 0) return link;
  link.large_requests = 1 / std::max(1e-3, 1 - waiting);
  link.half_bytes = 1 / (waiting + (1 - waiting) / 2);
  return link;
}

uint64_t bytes_while_waiting(const StoreCounts& counts) {
  const double receiving = counts.request_s - counts.waiting_s;
  if (counts.requests == 0 || receiving <= 0) return UINT64_MAX;
  return uint64_t(std::min(counts.least_first_byte_s * double(counts.bytes) / receiving, 1e18));
}

std::string link_text(const LinkUse& link) {
  return fmt::format(
      "{:.1f} MB/s in {:.0f} requests/s; first byte after {:.1f} ms (median), {:.1f} ms (95th "
      "percentile); {:.0f} % of the bytes from the cache on disk",
      link.bytes_per_s * 1e-6, link.requests_per_s, link.first_byte_s * 1e3,
      link.late_first_byte_s * 1e3, 100 * link.disk_share);
}

std::vector<std::string> link_advice(const LinkUse& link) {
  std::vector<std::string> lines;
  if (link.requests_per_s <= 0) return lines;
  if (link.large_requests >= kWorth)
    lines.push_back(
        fmt::format("large requests: at most {:.1f}x. Pack into shards (saturate data "
                    "pack), and set data.shuffle=block",
                    link.large_requests));
  if (link.half_bytes >= kWorth)
    lines.push_back(fmt::format("half the bytes: about {:.1f}x. Pack with --max-side or --quality",
                                link.half_bytes));
  lines.push_back(
      link.disk_share > 0
          ? fmt::format("a larger cache: no request for the other {:.0f} % of the bytes. Raise "
                        "data.cache_gb",
                        100 * (1 - link.disk_share))
          : "a cache on disk: no request from the second epoch on. Set data.cache_dir, and "
            "data.cache_gb to the size of the dataset");
  return lines;
}

}  // namespace saturate
