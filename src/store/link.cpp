#include "store/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace saturate {
namespace {

constexpr double kWorth = 1.1;      // a speedup that is named
constexpr double kSegments = 1.05;  // for their table, and segments that a crop cuts

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + ptrdiff_t(double(values.size() - 1) * share);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// "about 2.0x", or "no request" if the cache serves all at a rate that is unknown.
std::string speedup_text(double speedup) {
  return std::isfinite(speedup) ? fmt::format("about {:.1f}x", speedup) : "no request";
}

std::string cache_advice(const LinkUse& link) {
  if (link.disk_share <= 0)
    return fmt::format(
        "a cache on disk: {} from the second epoch on if it holds half of the dataset, and no "
        "request if it holds all. Set data.cache_dir and data.cache_gb",
        speedup_text(link.larger_cache));
  const std::string disk =
      link.disk_rate > 0
          ? fmt::format(" (one reader of the disk gets {:.0f} MB/s)", link.disk_rate * 1e-6)
          : "";
  return fmt::format(
      "a larger cache, for the other {:.0f} % of the bytes: {} if it is twice as large, {} if it "
      "holds all{}. Raise data.cache_gb",
      100 * (1 - link.disk_share), speedup_text(link.larger_cache), speedup_text(link.whole_cache),
      disk);
}

}  // namespace

double segments_speedup(const LinkUse& link) {
  if (link.requests_per_s <= 0 || link.crop_share >= 1) return 1;
  const double received = std::min(1.0, kSegments * link.crop_share);
  return 1 / (2 * link.waiting + (1 - link.waiting) * received);
}

LinkUse link_use(const StoreCounts& before, const StoreCounts& after, double seconds) {
  LinkUse link;
  link.can_keep = !after.has_unknown;
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
  link.waiting = waiting;
  const double disk_s = after.disk_s - before.disk_s;
  link.disk_rate = ratio(on_disk, disk_s);
  const double most =
      on_disk > 0 && link.disk_rate > 0
          ? std::max(1.0, link.disk_rate / std::max(ratio(on_disk + bytes, seconds), 1.0))
          : INFINITY;
  const double then = link.disk_share > 0 ? std::min(2 * link.disk_share, 1.0) : 0.5;
  link.larger_cache = then < 1 ? std::min(most, (1 - link.disk_share) / (1 - then)) : most;
  link.whole_cache = most;
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
  if (const double segments = segments_speedup(link); segments >= kWorth)
    lines.push_back(fmt::format(
        "JPEGs in segments: about {:.1f}x, as crops need {:.0f} % of the bytes. Pack into shards "
        "(saturate data pack), without data.cache_dir",
        segments, 100 * std::min(1.0, kSegments * link.crop_share)));
  if (link.can_keep) lines.push_back(cache_advice(link));
  return lines;
}

}  // namespace saturate
