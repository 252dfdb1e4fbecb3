#include "store/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace saturate {
namespace {

constexpr double kWorth = 1.1;      // a speedup that is named
constexpr double kSegments = 1.05;  // for their table, and segments that a crop cuts
constexpr double kFull = 0.9;       // of the budget of a cache

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
  const std::string larger = speedup_text(run_speedup(link, link.larger_cache)),
                    whole = speedup_text(run_speedup(link, link.whole_cache));
  if (link.cache_budget == 0)
    return fmt::format(
        "a cache on disk: {} from the second epoch on if it holds half of the dataset, and {} if "
        "it holds all. Set data.cache_dir and data.cache_gb",
        larger, whole);
  if (double(link.cache_used) < kFull * double(link.cache_budget))
    return fmt::format(
        "data.cache_dir holds {:.1f} of at most {:.1f} GB so far: what it keeps is not requested "
        "again",
        double(link.cache_used) * 1e-9, double(link.cache_budget) * 1e-9);
  const std::string disk =
      link.disk_rate > 0
          ? fmt::format(" (one reader of the disk gets {:.0f} MB/s)", link.disk_rate * 1e-6)
          : "";
  return fmt::format(
      "a larger cache, for the other {:.0f} % of the bytes: {} if it {}, {} if it holds all{}. "
      "Raise data.cache_gb",
      100 * (1 - link.disk_share), larger,
      link.disk_share > 0 ? "is twice as large" : "holds half of the dataset", whole, disk);
}

// A request for neighbours fetches as many samples as the read-ahead has memory for. Half of the
// memory holds those that have arrived, or that were announced too late for their neighbours.
double block_speedup(const StoreCounts& use, double waiting) {
  const double bytes = std::max(ratio(double(use.bytes), double(use.requests)), 1.0);
  const StoreTuning tuning;
  const double merged = std::min(double(use.ahead_bytes) / (2 * tuning.most_ahead_requests),
                                 double(tuning.merged_bytes));
  const double samples = std::max(1.0, merged / bytes);
  return samples / (waiting + samples * (1 - waiting));
}

}  // namespace

double segments_speedup(const LinkUse& link) {
  if (link.requests_per_s <= 0 || link.crop_share >= 1) return 1;
  const double received = std::min(1.0, kSegments * link.crop_share);
  return 1 / (2 * link.waiting + (1 - link.waiting) * received);
}

double run_speedup(const LinkUse& link, double speedup) {
  return std::min(link.most, 1 / (1 - link.network_share + link.network_share / speedup));
}

void add_use(StoreCounts& sum, const StoreCounts& before, const StoreCounts& after) {
  const uint64_t requests = after.requests - before.requests;
  StoreCounts all = after;  // with the first bytes of earlier requests
  auto& recent = all.first_bytes_s;
  if (recent.size() > requests) recent.erase(recent.begin(), recent.end() - ptrdiff_t(requests));
  recent.insert(recent.begin(), sum.first_bytes_s.begin(), sum.first_bytes_s.end());
  all.requests = sum.requests + requests;
  all.bytes = sum.bytes + (after.bytes - before.bytes);
  all.disk_bytes = sum.disk_bytes + (after.disk_bytes - before.disk_bytes);
  all.disk_s = sum.disk_s + (after.disk_s - before.disk_s);
  all.request_s = sum.request_s + (after.request_s - before.request_s);
  all.waiting_s = sum.waiting_s + (after.waiting_s - before.waiting_s);
  sum = std::move(all);
}

LinkUse link_use(const StoreCounts& before, const StoreCounts& after, double seconds) {
  StoreCounts use;
  add_use(use, before, after);
  return link_use(use, seconds);
}

LinkUse link_use(const StoreCounts& use, double seconds) {
  LinkUse link;
  link.can_keep = !use.has_unknown;
  link.cache_used = use.cache_used;
  link.cache_budget = use.cache_budget;
  const double bytes = double(use.bytes), on_disk = double(use.disk_bytes);
  link.bytes_per_s = ratio(bytes, seconds);
  link.requests_per_s = ratio(double(use.requests), seconds);
  link.first_byte_s = quantile(use.first_bytes_s, 0.5);
  link.late_first_byte_s = quantile(use.first_bytes_s, 0.95);
  link.disk_share = ratio(on_disk, on_disk + bytes);
  if (use.request_s <= 0) return link;
  link.waiting = use.waiting_s / use.request_s;
  link.disk_rate = ratio(on_disk, use.disk_s);
  const double most =
      on_disk > 0 && link.disk_rate > 0
          ? std::max(1.0, link.disk_rate / std::max(ratio(on_disk + bytes, seconds), 1.0))
          : INFINITY;
  const double then = link.disk_share > 0 ? std::min(2 * link.disk_share, 1.0) : 0.5;
  link.larger_cache = then < 1 ? std::min(most, (1 - link.disk_share) / (1 - then)) : most;
  link.whole_cache = most;
  link.large_requests = block_speedup(use, link.waiting);
  link.half_bytes = 1 / (link.waiting + (1 - link.waiting) / 2);
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
  if (link.requests_per_s <= 0) return {};
  const double most = run_speedup(link, INFINITY);
  if (most < kWorth)
    return {fmt::format("it is not the limit: at most {:.2f}x without any wait for it", most)};
  std::vector<std::string> lines;
  const auto add = [&](const char* change, double speedup, const std::string& how) {
    const double whole = run_speedup(link, speedup);
    if (whole >= kWorth) lines.push_back(fmt::format("{} {:.1f}x. {}", change, whole, how));
  };
  std::string how = link.is_packed ? "" : "Pack into shards (saturate data pack)";
  if (link.in_random_order)
    how += link.is_packed ? "Set data.shuffle=block" : ", and set data.shuffle=block";
  if (!how.empty()) add("large requests: up to", link.large_requests, how);
  add("half the bytes: about", link.half_bytes, "Pack with --max-side or --quality");
  if (link.in_random_order)
    add("JPEGs in segments: about", segments_speedup(link),
        fmt::format("Crops need {:.0f} % of the bytes. Pack into shards (saturate data pack), "
                    "without data.cache_dir",
                    100 * std::min(1.0, kSegments * link.crop_share)));
  if (link.can_keep && run_speedup(link, link.whole_cache) >= kWorth)
    lines.push_back(cache_advice(link));
  return lines;
}

}  // namespace saturate
