// What every `saturate bench` prints and writes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "saturate/gain.h"

namespace saturate {

class Env;

// Something measured n times.
struct BenchRow {
  std::string name;
  std::string unit;             // of `values`
  std::vector<double> values;   // one a repetition
  nlohmann::ordered_json keys;  // more keys of the JSON row, an object
};

struct BenchReport {
  std::string bench;  // "loader"
  std::vector<BenchRow> rows;
};

// The table on stdout: median, least and largest of each row.
void print_report(const BenchReport& report);
// {"bench", "host", "commit", "rows": [{"name", "unit", "median", "min", "max", "n", ...}]}.
void write_report(Env& env, const std::string& path, const BenchReport& report);

// Fails with kUsage in a build whose figures mean nothing.
void require_release_build();

}  // namespace saturate
