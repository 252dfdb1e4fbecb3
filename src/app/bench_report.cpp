#include "app/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/command.h"
#include "record/json_fields.h"
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

int publish(const BenchReport& report, const std::string& json_path,
            const std::function<void(const BenchReport&)>& print) {
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
  write_and_print({{json_path, json_text(json)}}, [&] { print(report); });
  return 0;
}

void add_json_option(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "Write the rows to this file too")->each(require_output);
}

void require_release_build() {
#ifndef NDEBUG
  fail(ErrorKind::kUsage, "this is a debug build, whose measurements are not meaningful", "bench",
       "Build with make build (CMAKE_BUILD_TYPE=Release)");
#endif
}

}  // namespace saturate
