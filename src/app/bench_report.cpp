#include "app/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "trace/host.h"

namespace saturate {
namespace {

struct RowSpread {
  double median, min, max;
};

RowSpread spread_of(const std::vector<double>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {median_of(values), *min, *max};
}

}  // namespace

void print_report(const BenchReport& report) {
  size_t width = 0;
  for (const BenchRow& row : report.rows) width = std::max(width, row.name.size());
  fmt::print("{:<{}}  {:>10}  {:>10}  {:>10}   n\n", report.bench, width, "median", "min", "max");
  for (const BenchRow& row : report.rows) {
    const RowSpread spread = spread_of(row.values);
    fmt::print("{:<{}}  {:>10.1f}  {:>10.1f}  {:>10.1f}  {:>2}  {}\n", row.name, width,
               spread.median, spread.min, spread.max, row.values.size(), row.unit);
  }
}

void write_report(Env& env, const std::string& path, const BenchReport& report) {
  const Host host = this_host();
  nlohmann::ordered_json json = {{"bench", report.bench},
                                 {"host",
                                  {{"cpu", host.cpu},
                                   {"system", host.system},
                                   {"cores", host.cores},
                                   {"memory_bytes", host.memory_bytes}}},
                                 {"commit", build_commit()},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const BenchRow& row : report.rows) {
    const RowSpread spread = spread_of(row.values);
    nlohmann::ordered_json entry = {{"name", row.name},        {"unit", row.unit},
                                    {"median", spread.median}, {"min", spread.min},
                                    {"max", spread.max},       {"n", row.values.size()}};
    entry.update(row.keys);
    json["rows"].push_back(entry);
  }
  // A source's name may not be UTF-8.
  write_atomically(
      env, path, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void require_release_build() {
#ifndef NDEBUG
  fail(ErrorKind::kUsage, "this is a debug build, whose measurements are not meaningful", "bench",
       "Build with make build (CMAKE_BUILD_TYPE=Release)");
#endif
}

}  // namespace saturate
